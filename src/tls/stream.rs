//! What a connection is read from and written to: a socket, or a session above it.

use std::io::{Read, Write};

use crate::sys::Socket;

/// See the module. It does not block: nothing to read is
/// [`WouldBlock`](std::io::ErrorKind::WouldBlock), and so is no room to write.
pub(crate) trait Stream: Read + Write + Send {
    fn socket(&mut self) -> &mut Socket;

    /// Whether the handshake is under way.
    fn is_securing(&self) -> bool {
        false
    }

    /// Whether written bytes wait for room: [`Write::flush`] writes them.
    fn wants_write(&self) -> bool {
        false
    }

    /// Whether a read may find bytes that the system does not announce: decrypted ones.
    fn has_decrypted(&self) -> bool {
        false
    }

    /// Whether a read would find bytes, the end or an error now. For threads that must not read.
    fn is_readable(&mut self) -> bool {
        self.has_decrypted() || self.socket().has_unread()
    }
}

impl Stream for Socket {
    fn socket(&mut self) -> &mut Socket {
        self
    }
}
