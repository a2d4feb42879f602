//! A connection on its way: from the address to a server that may vote.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::engine::sync::Poll;
use crate::engine::worker::SOCKET;
use crate::error::NodeFailure;
use crate::time::{self, Tick};
use crate::wire::{self, Address, Filled, Greeting, Handshake, Inbox, Next, Place, Socket};

/// One attempt to connect and log in, in steps that do not block.
pub(crate) struct Opening {
    address: Address,
    /// Addresses of the same name that have not been tried.
    untried: VecDeque<SocketAddr>,
    socket: Socket,
    inbox: Inbox,
    dialogue: Option<Handshake>,
    unsent: Vec<u8>,
    deadline: Tick,
    /// When the dialogue began.
    asked: Tick,
}

pub(crate) enum Progress {
    Wait,
    /// The node may vote on this connection.
    Done(Greeting),
}

impl Opening {
    /// Begins. Resolving a name blocks, see [`Socket::resolve`], and its time is not part of `timeout`: where names
    /// are slow the node is down for longer, but it does come up.
    pub(crate) fn begin(address: &Address, timeout: Duration, poll: &Poll) -> Result<Opening, NodeFailure> {
        let addresses = Socket::resolve(&address.place).map_err(|err| cannot(&err))?;
        Opening::at(address, addresses.into(), timeout, poll)
    }

    /// Begins with the addresses that the name has, which are tried one after another.
    fn at(
        address: &Address,
        mut untried: VecDeque<SocketAddr>,
        timeout: Duration,
        poll: &Poll,
    ) -> Result<Opening, NodeFailure> {
        let socket = next_socket(address, &mut untried, poll)?;
        let now = time::tick();
        let deadline = now.checked_add(timeout).unwrap_or(now);
        let (inbox, address) = (Inbox::new(), address.clone());
        Ok(Opening { address, untried, socket, inbox, dialogue: None, unsent: Vec::new(), deadline, asked: now })
    }

    pub(crate) fn into_parts(self) -> (Socket, Inbox) {
        (self.socket, self.inbox)
    }

    /// When the server was asked what the greeting answers, or before.
    pub(crate) fn asked(&self) -> Tick {
        self.asked
    }

    pub(crate) fn deadline(&self) -> Tick {
        self.deadline
    }

    /// Goes as far as it can now.
    pub(crate) fn step(&mut self, poll: &Poll, now: Tick) -> Result<Progress, NodeFailure> {
        if self.deadline <= now {
            let reason =
                if self.dialogue.is_some() { "no answer to the login in time" } else { "no connection in time" };
            return Err(NodeFailure::Connect { reason: reason.to_owned() });
        }
        if self.dialogue.is_none() {
            match self.socket.is_connected() {
                Ok(false) => return Ok(Progress::Wait),
                Ok(true) => {
                    let (dialogue, bytes) = Handshake::begin(&self.address);
                    self.asked = now;
                    self.dialogue = Some(dialogue);
                    self.unsent = bytes;
                }
                Err(_) if !self.untried.is_empty() => {
                    self.socket = next_socket(&self.address, &mut self.untried, poll)?;
                    return Ok(Progress::Wait);
                }
                Err(err) => return Err(cannot(&err)),
            }
        }
        self.talk()
    }

    fn talk(&mut self) -> Result<Progress, NodeFailure> {
        loop {
            let written = self.write();
            let filled = self.inbox.fill(&self.socket);
            let mut replies = Vec::new();
            // What has come is read before the end of the connection is believed: a server that refuses says why
            // and closes.
            let found = self.inbox.take_replies(&mut replies);
            let Some(dialogue) = &mut self.dialogue else { return Ok(Progress::Wait) };
            for reply in replies {
                match dialogue.on_reply(self.inbox.get(reply))? {
                    Next::Read => {}
                    Next::Write(bytes) => self.unsent.extend_from_slice(&bytes),
                    Next::Done(greeting) => return Ok(Progress::Done(greeting)),
                }
            }
            found.map_err(|reason| NodeFailure::Protocol { reason })?;
            match written.and(filled) {
                Err(err) => return Err(dialogue.failure().unwrap_or_else(|| lost(&err))),
                // Only now the system announces the next bytes.
                Ok(Filled::Nothing) => return Ok(Progress::Wait),
                Ok(Filled::Short | Filled::Full) => {}
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let written = self.socket.write(&self.unsent)?;
            if written == 0 {
                break;
            }
            self.unsent.drain(..written);
        }
        Ok(())
    }
}

fn next_socket(address: &Address, untried: &mut VecDeque<SocketAddr>, poll: &Poll) -> Result<Socket, NodeFailure> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        let begun = match (&address.place, untried.pop_front()) {
            (Place::Tcp { .. }, Some(next)) => Socket::connect_tcp(next),
            (Place::Tcp { .. }, None) => return Err(cannot(&last)),
            (Place::Unix(path), _) => Socket::connect_unix(path),
        };
        match begun.and_then(|mut socket| socket.register(poll.registry(), SOCKET).map(|()| socket)) {
            Ok(socket) => return Ok(socket),
            Err(err) if untried.is_empty() => return Err(cannot(&err)),
            Err(err) => last = err,
        }
    }
}

fn cannot(err: &io::Error) -> NodeFailure {
    NodeFailure::Connect { reason: wire::reason(err) }
}

fn lost(err: &io::Error) -> NodeFailure {
    NodeFailure::Disconnected { reason: wire::reason(err) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn g3_the_addresses_of_one_name_are_tried_one_after_another() {
        let (listens, gone) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = [gone.local_addr().unwrap(), listens.local_addr().unwrap()];
        drop(gone);
        listens.set_nonblocking(true).unwrap();
        let address = Address::parse("redis://two-addresses").unwrap();
        let poll = Poll::new().unwrap();

        let mut opening = Opening::at(&address, addresses.into(), Duration::from_secs(30), &poll).unwrap();
        while listens.accept().is_err() {
            // An error ends the test, at the latest when the time to connect is over.
            assert!(matches!(opening.step(&poll, time::tick()), Ok(Progress::Wait)));
            std::thread::yield_now();
        }

        // And none that is left.
        assert!(opening.untried.is_empty());
    }

    #[test]
    fn g3_a_name_of_which_no_address_answers_is_one_failure() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [gone.local_addr().unwrap(); 3];
        drop(gone);
        let (address, poll) = (Address::parse("redis://three-addresses").unwrap(), Poll::new().unwrap());

        let mut opening = Opening::at(&address, addresses.into(), Duration::from_secs(30), &poll).unwrap();
        let failure = loop {
            match opening.step(&poll, time::tick()) {
                Ok(_) => std::thread::yield_now(),
                Err(failure) => break failure,
            }
        };

        let NodeFailure::Connect { reason } = failure else { panic!("{failure:?}") };
        assert!(reason.contains("refused"), "{reason}");
    }
}
