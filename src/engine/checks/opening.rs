//! A connection that is ready at once: stands in for `engine/opening.rs`, in which no two threads meet.

use std::time::Duration;

use crate::engine::sync::Poll;
use crate::engine::worker::SOCKET;
use crate::error::NodeFailure;
use crate::time::{self, Tick};
use crate::wire::{Address, Greeting, Inbox, Place, Socket};

pub(crate) struct Opening {
    socket: Socket,
    run_id: String,
}

pub(crate) enum Progress {
    Wait,
    Done(Greeting),
}

impl Opening {
    pub(crate) fn begin(address: &Address, _timeout: Duration, poll: &Poll) -> Result<Opening, NodeFailure> {
        let Place::Tcp { port, .. } = address.place else { return Err(NodeFailure::Internal) };
        match Socket::connect(port, poll.registry(), SOCKET) {
            Ok(socket) => Ok(Opening { socket, run_id: port.to_string() }),
            Err(err) => Err(NodeFailure::Connect { reason: err.to_string() }),
        }
    }

    pub(crate) fn into_parts(self) -> (Socket, Inbox) {
        (self.socket, Inbox::new())
    }

    pub(crate) fn asked(&self) -> Tick {
        time::tick()
    }

    pub(crate) fn deadline(&self) -> Tick {
        time::tick()
    }

    pub(crate) fn step(&mut self, _poll: &Poll, _now: Tick) -> Result<Progress, NodeFailure> {
        Ok(Progress::Done(Greeting { run_id: Some(self.run_id.clone()), pushes: true, ..Greeting::default() }))
    }
}
