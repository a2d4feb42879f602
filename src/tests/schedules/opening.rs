//! A connection that is ready at once: stands in for `engine/connecting.rs`, in which no two threads meet.

use std::time::Duration;

use crate::answer::ServerInfo;
use crate::engine::nodes::job::Job;
use crate::error::NodeFailure;
use crate::sys::{Poll, SOCKET, Socket};
use crate::time::{Now, Tick};
use crate::wire::{Address, Command, Conn, Place};

pub(crate) struct Connecting {
    socket: Option<Socket>,
    run_id: String,
}

/// See `connect`.
pub(crate) enum Progress {
    Wait,
    Done(Box<Opened>),
}

pub(crate) struct Opened {
    pub(crate) socket: Socket,
    pub(crate) conn: Conn<Job>,
    pub(crate) server_info: ServerInfo,
    pub(crate) asked: Now,
}

impl Connecting {
    pub(crate) fn begin(
        address: &Address,
        _greet: Option<Command>,
        _timeout: Duration,
        poll: &Poll,
    ) -> Result<Connecting, NodeFailure> {
        let Place::Tcp { port, .. } = address.place else { return Err(NodeFailure::Internal) };
        match Socket::connect(port, poll.registry(), SOCKET) {
            Ok(socket) => Ok(Connecting { socket: Some(socket), run_id: port.to_string() }),
            Err(err) => Err(NodeFailure::Connect { reason: err.to_string() }),
        }
    }

    pub(crate) fn deadline(&self) -> Tick {
        crate::time::tick()
    }

    pub(crate) fn step(&mut self, _poll: &Poll, _now: Tick) -> Result<Progress, NodeFailure> {
        let Some(socket) = self.socket.take() else { return Ok(Progress::Wait) };
        let server_info = ServerInfo { run_id: Some(self.run_id.clone()), pushes: true, ..ServerInfo::default() };
        let conn = Conn::ready(true);
        Ok(Progress::Done(Box::new(Opened { socket, conn, server_info, asked: Now::read() })))
    }
}
