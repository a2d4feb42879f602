//! A member of a node that is more than one process: a connection over which it is asked where the master is, kept from look to
//! look.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::answer::cluster::View;
use crate::engine::nodes::connect::{cannot, lost, secure};
use crate::engine::nodes::probe;
use crate::engine::nodes::resolve::{Resolver, Resolving};
use crate::error::{MemberAnswer, NodeFailure, TlsFailure};
use crate::sys::{Registry, Socket, Token};
use crate::wire::{Address, Place, Probe, Question};

/// A connection on which so many looks, one after the other, had no answer is given up: bytes may be acknowledged by something
/// whose far side is gone.
const MISSED_MAX: u32 = 3;

/// How all members are asked.
pub(super) struct Asking<'a> {
    /// The group's.
    pub(super) address: &'a Address,
    pub(super) question: &'a Question,
    pub(super) resolver: &'a Resolver,
    /// Whose answer may be long.
    pub(super) long: Option<Token>,
    /// Where the thread waits for sockets.
    pub(super) registry: &'a Registry,
}

/// See the module.
pub(super) struct Member {
    place: Place,
    /// What its certificate is for, where that is not its host.
    name: Option<Arc<str>>,
    token: Token,
    link: Option<Link>,
    /// Its name is being resolved; one thread at most does that.
    resolving: Option<Resolving>,
    /// The addresses that its name had last, or why there are none.
    known: Result<Vec<SocketAddr>, NodeFailure>,
    /// Those of them that have not been tried.
    untried: VecDeque<SocketAddr>,
    /// The connection is from an earlier look, and may have been closed meanwhile.
    kept: bool,
    /// What it answers next was asked in an earlier look.
    stale: bool,
    /// In how many looks, one after the other, it has not answered.
    missed: u32,
    /// Asks it whether it speaks TLS.
    doubt: Option<probe::Probe>,
    /// What it has said in this look.
    said: Option<MemberAnswer>,
}

struct Link {
    to: SocketAddr,
    socket: Socket,
    connected: bool,
    /// Something has come.
    heard: bool,
    probe: Probe,
}

impl Member {
    pub(super) fn new(place: Place, name: Option<Arc<str>>, token: Token) -> Member {
        Member {
            place,
            name,
            token,
            link: None,
            resolving: None,
            known: Err(NodeFailure::Connect { reason: "its name is not resolved yet".to_owned() }),
            untried: VecDeque::new(),
            kept: false,
            stale: false,
            missed: 0,
            doubt: None,
            said: None,
        }
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// The certificate of its next connection has to be for that, or for its host.
    pub(super) fn call(&mut self, name: Option<Arc<str>>) {
        self.name = name;
    }

    /// What a server of a cluster has said of all of them, in this look.
    pub(super) fn view(&mut self) -> Option<View> {
        let view = self.link.as_mut().and_then(|it| it.probe.view());
        view.filter(|_| self.said.is_some())
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Whether it is about to give a long answer.
    pub(super) fn is_long(&self) -> bool {
        self.said.is_none() && self.link.as_ref().is_some_and(|it| it.probe.is_long())
    }

    /// What it has said in this look.
    pub(super) fn said(&self) -> Option<&MemberAnswer> {
        self.said.as_ref()
    }

    /// Begins a look.
    pub(super) fn begin(&mut self, asking: &Asking<'_>) {
        (self.said, self.doubt) = (None, None);
        self.note_resolved();
        let owes = self.link.as_ref().is_some_and(|it| it.probe.owes());
        self.missed = if owes { self.missed.saturating_add(1) } else { 0 };
        match &mut self.link {
            Some(link) if self.missed < MISSED_MAX => {
                self.kept = true;
                self.stale = owes;
                link.probe.ask();
            }
            _ => self.connect(asking),
        }
    }

    /// Ends it.
    pub(super) fn end(&mut self) -> MemberAnswer {
        let is_securing = self.link.as_ref().is_some_and(Link::is_securing);
        let silent = || match &self.known {
            _ if is_securing => NodeFailure::Tls(TlsFailure::NoAnswer),
            Err(failure) => failure.clone(),
            Ok(_) => NodeFailure::TimedOut,
        };
        self.said.take().unwrap_or_else(|| MemberAnswer::Failed(silent()))
    }

    /// Connects anew, as soon as its name is resolved.
    fn connect(&mut self, asking: &Asking<'_>) {
        (self.link, self.missed) = (None, 0);
        let Place::Tcp { host, port } = &self.place else { return };
        self.resolving.get_or_insert_with(|| asking.resolver.begin(host, *port));
        if self.note_resolved() {
            self.connect_known(asking);
        }
    }

    /// Takes note of the addresses of its name. True if it is not being resolved any more.
    fn note_resolved(&mut self) -> bool {
        let Some(found) = self.resolving.as_ref().and_then(Resolving::poll) else { return false };
        self.resolving = None;
        match found {
            Ok(addresses) => self.known = Ok(addresses),
            Err(err) if self.known.is_err() => self.known = Err(cannot(&err)),
            // Those that it had last may do.
            Err(_) => {}
        }
        true
    }

    /// Connects to one of the known addresses.
    fn connect_known(&mut self, asking: &Asking<'_>) {
        match &self.known {
            Ok(addresses) => {
                self.untried = addresses.iter().copied().collect();
                self.connect_next(asking, NodeFailure::TimedOut);
            }
            Err(failure) => self.said = Some(MemberAnswer::Failed(failure.clone())),
        }
    }

    /// Half of the look is over. Where the name is not resolved by now, the addresses that it had last have to do.
    pub(super) fn hurry(&mut self, asking: &Asking<'_>) {
        if self.said.is_none() && self.link.is_none() && self.known.is_ok() {
            self.connect_known(asking);
        }
    }

    /// `last`: why the address before is of no use.
    fn connect_next(&mut self, asking: &Asking<'_>, mut last: NodeFailure) {
        (self.kept, self.stale) = (false, false);
        while let Some(next) = self.untried.pop_front() {
            match Link::begin(&self.place, self.name.as_deref(), next, self.token, asking) {
                Ok(link) => {
                    self.link = Some(link);
                    return;
                }
                Err(failure) => last = failure,
            }
        }
        self.said = Some(MemberAnswer::Failed(last));
    }

    /// Goes as far as it can now.
    pub(super) fn step(&mut self, asking: &Asking<'_>) {
        if self.said.is_none() && self.link.is_none() && self.note_resolved() {
            self.connect_known(asking);
        }
        while self.said.is_none()
            && let Some(link) = &mut self.link
        {
            match link.step(asking.long == Some(self.token)) {
                Ok(None) => break,
                Ok(Some(said @ MemberAnswer::Failed(_))) => (self.link, self.said) = (None, Some(said)),
                // It was asked before this look, and may have said so before it.
                Ok(Some(_)) if self.stale => {
                    self.stale = false;
                    link.probe.ask();
                }
                Ok(Some(said)) => self.said = Some(said),
                Err(failure) => {
                    self.link = None;
                    if self.kept {
                        self.kept = false;
                        self.connect(asking);
                    } else {
                        self.connect_next(asking, failure);
                    }
                }
            }
        }
        if self.said.is_none() && self.doubt.as_mut().is_some_and(probe::Probe::step) {
            (self.link, self.said) = (None, Some(MemberAnswer::Failed(NodeFailure::Tls(TlsFailure::NotTls))));
        }
    }

    /// A server that has not answered the handshake of TLS yet is asked whether it speaks that.
    pub(super) fn doubt(&mut self, asking: &Asking<'_>) {
        let ignored = self.link.as_ref().filter(|it| it.is_securing() && !it.heard && self.said.is_none());
        self.doubt = ignored.and_then(|it| probe::Probe::begin(it.to, asking.registry, self.token));
    }
}

impl Link {
    fn begin(
        place: &Place,
        name: Option<&str>,
        to: SocketAddr,
        token: Token,
        asking: &Asking<'_>,
    ) -> Result<Link, NodeFailure> {
        let mut socket = Socket::connect_tcp(to).map_err(|err| cannot(&err))?;
        socket.register(asking.registry, token).map_err(|err| cannot(&err))?;
        let session = secure(asking.address.security_of_members(), place, name)?;
        let mut probe = Probe::begin(asking.address, asking.question, session);
        probe.ask();
        Ok(Link { to, socket, connected: false, heard: false, probe })
    }

    /// It is connected, and the handshake of TLS is under way.
    fn is_securing(&self) -> bool {
        self.connected && self.probe.is_securing()
    }

    /// Goes as far as it can now; what was said. An error: the connection was not established, or has ended. `is_long`: its
    /// answer may be long.
    fn step(&mut self, is_long: bool) -> Result<Option<MemberAnswer>, NodeFailure> {
        if !self.connected {
            self.connected = self.socket.is_connected().map_err(|err| cannot(&err))?;
            if !self.connected {
                return Ok(None);
            }
        }
        loop {
            let written = self.write();
            if !is_long && self.probe.is_long() {
                // The rest is read in its turn.
                return Ok(None);
            }
            let read = self.socket.read(self.probe.space());
            if let Ok(Some(len)) = read {
                self.heard = true;
                self.probe.filled(len);
            }
            // What has come is read before the end of the connection is believed.
            match self.probe.poll_said() {
                // So ends one with TLS.
                Some(MemberAnswer::Failed(failure @ NodeFailure::Disconnected { .. })) => return Err(failure),
                Some(said) => {
                    if matches!(said, MemberAnswer::Failed(_)) {
                        // With TLS the server is told why.
                        let _ = self.write();
                    }
                    return Ok(Some(said));
                }
                None => {}
            }
            match written.and(read) {
                // Only now the system announces the next bytes.
                Ok(None) => return Ok(None),
                Ok(Some(_)) => {}
                Err(err) => {
                    let failure = lost(&err, self.is_securing(), self.heard);
                    return self.probe.refused().map_or(Err(failure), |it| Ok(Some(MemberAnswer::Failed(it))));
                }
            }
        }
    }

    /// Writes what the system takes now.
    fn write(&mut self) -> io::Result<()> {
        loop {
            let bytes = self.probe.poll_write();
            if bytes.is_empty() {
                return Ok(());
            }
            match self.socket.write(bytes)? {
                0 => return Ok(()),
                written => self.probe.wrote(written),
            }
        }
    }
}
