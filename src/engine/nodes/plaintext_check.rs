//! Why a server does not answer the handshake of TLS: it may not speak it.
//!
//! A Redis port without TLS says nothing to a handshake: it waits for the end of what it takes for a line. So it is asked on a
//! connection of its own, with something that is no secret, and whoever answers that speaks no TLS.

use std::net::SocketAddr;

use crate::sys::{Registry, SOCKET, Socket};

/// See the module.
pub(crate) struct PlaintextCheck {
    socket: Socket,
    asked: bool,
}

/// Every server answers this, if only that it wants a password first.
const QUESTION: &[u8] = b"PING\r\n";
/// What such answers begin with.
const ANSWERS: &[u8] = b"+-";

impl PlaintextCheck {
    /// Begins. `None` if that cannot be done: then nothing is known.
    pub(crate) fn begin(address: SocketAddr, registry: &Registry) -> Option<PlaintextCheck> {
        let mut socket = Socket::connect_tcp(address).ok()?;
        socket.register(registry, SOCKET).ok()?;
        Some(PlaintextCheck {
            socket,
            asked: false,
        })
    }

    /// Goes as far as it can now. True once the server has answered without TLS.
    pub(crate) fn step(&mut self) -> bool {
        if !self.asked {
            // What is not written at once is not worth waiting for.
            self.asked = matches!(self.socket.is_connected(), Ok(true))
                && self.socket.write(QUESTION).is_ok();
        }
        let mut answer = [0];
        self.asked
            && matches!(self.socket.read(&mut answer), Ok(Some(_)) if ANSWERS.contains(&answer[0]))
    }
}
