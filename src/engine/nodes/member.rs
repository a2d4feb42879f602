//! A member of a node that is more than one process: a connection over which it is asked where the master is, kept from
//! probe to probe.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::answer::cluster_view::View;
use crate::engine::nodes::connect::{CloseReason, Connecting, Opened, Progress, advance, cannot};
use crate::engine::nodes::job::Job;
use crate::engine::nodes::resolve::{Resolver, Resolving};
use crate::error::{MemberAnswer, NodeFailure, TlsFailure};
use crate::sys::Poll;
use crate::time::{self, Now, Tick};
use crate::wire::{Address, Endpoint, Question};

/// A connection on which so many probes, one after the other, had no answer is given up: bytes may be acknowledged by
/// something whose far side is gone.
const MISSED_MAX: u32 = 3;

/// How all members are asked.
pub(super) struct ProbeContext<'a> {
    pub(super) resolver: &'a Resolver,
    /// Where the thread waits for sockets.
    pub(super) poll: &'a Poll,
    /// How long the probe takes.
    pub(super) timeout: Duration,
    /// Half of that is over: for names that are still being resolved, the last addresses have to do.
    pub(super) is_late: bool,
}

/// See the module.
pub(super) struct Member {
    address: Address,
    question: Question,
    link: MemberConn,
    /// Its name is being resolved; one thread at most does that.
    resolving: Option<Resolving>,
    /// The addresses that its name had last, or why there are none.
    known: Result<Vec<SocketAddr>, NodeFailure>,
    /// The connection is from an earlier probe, and may have been closed meanwhile.
    kept: bool,
    /// What it answers next was asked in an earlier probe.
    stale: bool,
    /// In how many probes, one after the other, it has not answered.
    missed: u32,
    /// It gives its long answer.
    has_turn: bool,
    /// What it has said in this probe.
    said: Option<MemberAnswer>,
}

enum MemberConn {
    None,
    Connecting(Box<Connecting>),
    Open(Box<Opened>),
}

impl Member {
    pub(super) fn new(address: Address, question: Question) -> Member {
        Member {
            address,
            question,
            link: MemberConn::None,
            resolving: None,
            known: Err(NodeFailure::Connect {
                reason: "its name is not resolved yet".to_owned(),
            }),
            kept: false,
            stale: false,
            missed: 0,
            has_turn: false,
            said: None,
        }
    }

    pub(super) fn place(&self) -> &Endpoint {
        &self.address.place
    }

    /// The certificate of its next connection has to be for that, or for its host.
    pub(super) fn call(&mut self, name: Option<Arc<str>>) {
        self.address.name = name;
    }

    /// What a server of a cluster has said of all of them, in this probe.
    pub(super) fn view(&mut self) -> Option<View> {
        self.question.view().filter(|_| self.said.is_some())
    }

    /// What it has said in this probe.
    pub(super) fn said(&self) -> Option<&MemberAnswer> {
        self.said.as_ref()
    }

    /// Whether it is still giving its long answer.
    pub(super) fn keeps_turn(&mut self) -> bool {
        self.has_turn &= self.is_long();
        self.has_turn
    }

    /// Lets it give its long answer, if it is about to.
    pub(super) fn takes_turn(&mut self) -> bool {
        self.has_turn = self.is_long();
        self.has_turn
    }

    fn is_long(&self) -> bool {
        self.said.is_none() && matches!(&self.link, MemberConn::Open(it) if it.conn.is_long())
    }

    /// When to call [`Member::step`] again, whatever comes until then.
    pub(super) fn due(&self) -> Option<Tick> {
        if let MemberConn::Connecting(it) = &self.link {
            it.due()
        } else {
            None
        }
    }

    /// Begins a probe.
    pub(super) fn begin(&mut self, asking: &ProbeContext<'_>) {
        self.said = None;
        self.note_resolved();
        let owes = match &self.link {
            MemberConn::None => false,
            MemberConn::Connecting(_) => true,
            MemberConn::Open(it) => it.conn.in_flight() != 0,
        };
        self.missed = if owes {
            self.missed.saturating_add(1)
        } else {
            0
        };
        if matches!(self.link, MemberConn::None) || MISSED_MAX <= self.missed {
            return self.reconnect(asking);
        }
        (self.kept, self.stale) = (true, owes);
        if !owes {
            self.ask();
        }
    }

    /// Asks, if it is connected.
    fn ask(&mut self) {
        self.stale = false;
        if let MemberConn::Open(it) = &mut self.link {
            for command in self.question.begin() {
                it.conn
                    .enqueue(Job::of_connection(Arc::new(command)), Now::read());
            }
        }
    }

    /// Ends it.
    pub(super) fn end(&mut self) -> MemberAnswer {
        let silent = || match (&self.link, &self.known) {
            (MemberConn::Connecting(it), _) if it.is_securing() => {
                NodeFailure::Tls(TlsFailure::NoAnswer)
            }
            (_, Err(failure)) => failure.clone(),
            (_, Ok(_)) => NodeFailure::TimedOut,
        };
        self.said
            .take()
            .unwrap_or_else(|| MemberAnswer::Failed(silent()))
    }

    /// Ends its connection and resolves its name. [`Member::step`] connects as soon as that is done.
    fn reconnect(&mut self, asking: &ProbeContext<'_>) {
        (self.link, self.kept, self.stale, self.missed) = (MemberConn::None, false, false, 0);
        let Endpoint::Tcp { host, port } = &self.address.place else {
            return;
        };
        self.resolving
            .get_or_insert_with(|| asking.resolver.begin(host, *port));
    }

    /// Takes note of the addresses of its name. True if it is not being resolved any more.
    fn note_resolved(&mut self) -> bool {
        let Some(found) = self.resolving.as_ref().and_then(Resolving::poll) else {
            return false;
        };
        self.resolving = None;
        match found {
            Ok(addresses) => self.known = Ok(addresses),
            Err(err) if self.known.is_err() => self.known = Err(cannot(&err)),
            // Those that it had last may do.
            Err(_) => {}
        }
        true
    }

    /// Goes as far as it can now.
    pub(super) fn step(&mut self, asking: &ProbeContext<'_>) {
        while self.said.is_none() {
            match self.answer(asking) {
                Ok(None) => return,
                // It was asked before this probe, and may have said so before it.
                Ok(Some(_)) if self.stale => self.ask(),
                Ok(said) => self.said = said,
                Err(CloseReason::Link(_)) if self.kept => self.reconnect(asking),
                Err(CloseReason::Link(failure) | CloseReason::Server(failure)) => {
                    let failure = self.question.failure(failure);
                    (self.link, self.said) =
                        (MemberConn::None, Some(MemberAnswer::Failed(failure)));
                }
            }
        }
    }

    /// Its next answer, if that has come. Connects as soon as there are addresses.
    fn answer(&mut self, asking: &ProbeContext<'_>) -> Result<Option<MemberAnswer>, CloseReason> {
        loop {
            match &mut self.link {
                MemberConn::None => {
                    let is_known = self.note_resolved() || asking.is_late && self.known.is_ok();
                    if !is_known {
                        return Ok(None);
                    }
                    let addresses = self.known.clone().map_err(CloseReason::Link)?.into();
                    let connecting =
                        Connecting::at(&self.address, None, addresses, asking.timeout, asking.poll);
                    self.link =
                        MemberConn::Connecting(Box::new(connecting.map_err(CloseReason::Link)?));
                }
                // The deadline is that of the probe, and the next probe goes on with it.
                MemberConn::Connecting(it) => match it
                    .go_on(asking.poll, time::tick())
                    .map_err(CloseReason::Link)?
                {
                    Progress::Wait => return Ok(None),
                    Progress::Done(opened) => {
                        self.link = MemberConn::Open(opened);
                        self.ask();
                    }
                },
                MemberConn::Open(it) => {
                    let Some(event) = advance(&mut it.conn, &it.socket, self.has_turn)? else {
                        return Ok(None);
                    };
                    let said = self.question.take(event).map_err(CloseReason::Server)?;
                    if said.is_some() {
                        return Ok(said);
                    }
                }
            }
        }
    }
}
