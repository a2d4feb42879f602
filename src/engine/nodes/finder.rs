//! The thread that finds the master of a node that is more than one process, and keeps asking who it is.
//!
//! It asks all members side by side, over connections of its own that it keeps, and waits for none of them longer than
//! half of the connect timeout. Where there is a connection to a master, its answers are what that master's grants count by.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::answer::group::Said;
use crate::engine::nodes::node::Node;
use crate::error::{self, NodeFailure};
use crate::logic::group::{Outcome, Rhythm, named_master, only_master, outcome};
use crate::sys::logging::debug;
use crate::sys::sync::Mutex;
use crate::sys::{Events, Poll, Socket, Token, WAKE, Waker};
use crate::time::{self, Moment, Tick};
use crate::wire::{Address, Group, Place, Probe, Question};

/// A connection on which so many looks, one after the other, had no answer is given up: bytes may be acknowledged by something
/// whose far side is gone.
const MISSED_MAX: u32 = 3;

/// What a worker asks of the thread, and is told.
pub(crate) struct Finder {
    state: Mutex<State>,
    waker: Waker,
    rhythm: Rhythm,
}

#[derive(Default)]
struct State {
    /// How often the worker has asked.
    asked: u64,
    /// How many of these questions `found` answers.
    answered: u64,
    found: Option<Found>,
    /// The master that there is a connection to.
    connected: Option<Place>,
    stopped: bool,
}

/// What a look has found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) master: Result<Place, NodeFailure>,
    /// When the members were asked, or before.
    pub(crate) asked: Moment,
}

impl Finder {
    /// Looks for the master as soon as possible. The worker is woken; what was found is [`Finder::found`].
    pub(crate) fn ask(&self) -> u64 {
        let asked = {
            let mut state = self.state.lock();
            state.asked = state.asked.saturating_add(1);
            state.asked
        };
        self.wake();
        asked
    }

    /// What was found, by a look that began after that was asked.
    pub(crate) fn found(&self, asked: u64) -> Option<Found> {
        let state = self.state.lock();
        state.found.clone().filter(|_| asked <= state.answered)
    }

    /// There is a connection to this master, which was found so. Its grants count from now on.
    pub(crate) fn connected(&self, node: &Node, master: Place, asked: Moment) {
        let mut state = self.state.lock();
        state.connected = Some(master);
        self.believe(node, asked);
        drop(state);
        self.wake();
    }

    /// There is none any more.
    pub(crate) fn disconnected(&self) {
        self.state.lock().connected = None;
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake();
    }

    fn believe(&self, node: &Node, asked: Moment) {
        node.believe_until(asked.checked_add(self.rhythm.believed).unwrap_or(asked));
    }

    fn wake(&self) {
        if let Err(err) = self.waker.wake() {
            debug!("cannot wake the thread that looks for a master: {err}");
        }
    }
}

/// The thread's side.
pub(crate) struct Search {
    finder: Arc<Finder>,
    node: Arc<Node>,
    address: Address,
    group: Group,
    members: Vec<Member>,
    /// Their addresses.
    shown: Vec<Arc<str>>,
    poll: Poll,
    events: Events,
}

impl Search {
    /// `address` is the group's, `group` what is in it.
    pub(crate) fn new(
        node: Arc<Node>,
        address: Address,
        group: Group,
        rhythm: Rhythm,
    ) -> io::Result<(Search, Arc<Finder>)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let finder = Arc::new(Finder { state: Mutex::default(), waker, rhythm });
        let tokens = (1..).map(Token);
        let members =
            group.members().iter().zip(tokens).map(|(place, token)| Member::new(place.clone(), token)).collect();
        let shown = group.members().iter().map(|it| it.to_string().into()).collect();
        let events = Events::with_capacity(8);
        Ok((Search { finder: Arc::clone(&finder), node, address, group, members, shown, poll, events }, finder))
    }

    /// Runs until it is stopped.
    pub(crate) fn run(mut self) {
        let mut next = time::tick();
        loop {
            let (asked, is_due, watches) = {
                let state = self.finder.state.lock();
                if state.stopped {
                    return;
                }
                (state.asked, state.answered < state.asked, state.connected.is_some())
            };
            let now = time::tick();
            if is_due || watches && next <= now {
                next = now.checked_add(self.finder.rhythm.every).unwrap_or(now);
                let began = Moment::now();
                let master = self.look(now);
                self.conclude(asked, Found { master, asked: began });
            } else {
                self.wait(watches.then(|| next.saturating_duration_since(now)));
            }
        }
    }

    /// Asks all members.
    fn look(&mut self, now: Tick) -> Result<Place, NodeFailure> {
        let deadline = now.checked_add(self.finder.rhythm.look).unwrap_or(now);
        let question = Question::to(&self.group);
        let Search { members, address, poll, .. } = self;
        members.iter_mut().for_each(|it| it.begin(address, &question, poll));
        loop {
            let Search { members, address, poll, .. } = self;
            members.iter_mut().for_each(|it| it.step(address, &question, poll));
            let left = deadline.saturating_duration_since(time::tick());
            if left.is_zero() || self.members.iter().all(|it| it.said.is_some()) || self.finder.state.lock().stopped {
                break;
            }
            self.wait(Some(left));
        }
        let said: Vec<_> = self.members.iter_mut().map(Member::end).collect();
        match &self.group {
            Group::Replicated(members) => {
                let place = |it: usize| members.get(it).cloned().ok_or(NodeFailure::Internal);
                only_master(&said, &self.shown).and_then(place)
            }
            Group::Sentinel { master, .. } => {
                named_master(&said, &self.shown, master).map(|(host, port)| Place::Tcp { host, port })
            }
        }
    }

    /// Tells the worker.
    fn conclude(&self, answered: u64, found: Found) {
        let mut state = self.finder.state.lock();
        state.answered = answered;
        state.found = Some(found.clone());
        // RACE: with the state locked, so that what follows is about the connection that there is now.
        if let Some(connected) = &state.connected {
            match outcome(connected, found.master) {
                Outcome::Confirmed => self.finder.believe(&self.node, found.asked),
                Outcome::Unknown(failure) if !self.node.is_believed(Moment::now()) => self.give_up(failure),
                Outcome::Unknown(failure) => debug!("{}: {}: {failure}", self.node.id, self.node.address),
                Outcome::Over(failure) => self.give_up(failure),
            }
        }
        drop(state);
        self.node.link.wake_worker();
    }

    fn give_up(&self, failure: NodeFailure) {
        self.node.link.with(|it| it.give_up(failure));
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self, timeout: Option<Duration>) {
        if let Err(err) = self.poll.poll(&mut self.events, timeout)
            && err.kind() != io::ErrorKind::Interrupted
        {
            debug!("{}: cannot wait for its group: {err}", self.node.id);
        }
    }
}

/// Who is asked.
struct Member {
    place: Place,
    token: Token,
    link: Option<Link>,
    /// Addresses of the same name that have not been tried.
    untried: VecDeque<SocketAddr>,
    /// The connection is from an earlier look, and may have been closed meanwhile.
    kept: bool,
    /// What it answers next was asked in an earlier look.
    stale: bool,
    /// In how many looks, one after the other, it has not answered.
    missed: u32,
    /// What it has said in this look.
    said: Option<Said>,
}

struct Link {
    socket: Socket,
    connected: bool,
    probe: Probe,
}

impl Member {
    fn new(place: Place, token: Token) -> Member {
        Member { place, token, link: None, untried: VecDeque::new(), kept: false, stale: false, missed: 0, said: None }
    }

    /// Begins a look.
    fn begin(&mut self, address: &Address, question: &Question, poll: &Poll) {
        self.said = None;
        let owes = self.link.as_ref().is_some_and(|it| it.probe.owes());
        self.missed = if owes { self.missed.saturating_add(1) } else { 0 };
        match &mut self.link {
            Some(link) if self.missed < MISSED_MAX => {
                self.kept = true;
                self.stale = owes;
                link.probe.ask();
            }
            _ => self.connect(address, question, poll),
        }
    }

    /// Ends it.
    fn end(&mut self) -> Said {
        self.said.take().unwrap_or(Said::Failed(NodeFailure::TimedOut))
    }

    /// Connects anew. Resolving a name blocks.
    fn connect(&mut self, address: &Address, question: &Question, poll: &Poll) {
        (self.link, self.missed) = (None, 0);
        let Place::Tcp { host, port } = &self.place else { return };
        match Socket::resolve(host, *port) {
            Ok(addresses) => {
                self.untried = addresses.into();
                self.connect_next(
                    address,
                    question,
                    poll,
                    io::Error::new(io::ErrorKind::NotFound, "the name has no address"),
                );
            }
            Err(err) => self.said = Some(cannot(&err)),
        }
    }

    fn connect_next(&mut self, address: &Address, question: &Question, poll: &Poll, mut last: io::Error) {
        (self.kept, self.stale) = (false, false);
        while let Some(next) = self.untried.pop_front() {
            let begun = Socket::connect_tcp(next)
                .and_then(|mut socket| socket.register(poll.registry(), self.token).map(|()| socket));
            match begun {
                Ok(socket) => {
                    let mut probe = Probe::begin(address, question);
                    probe.ask();
                    self.link = Some(Link { socket, connected: false, probe });
                    return;
                }
                Err(err) => last = err,
            }
        }
        self.said = Some(cannot(&last));
    }

    /// Goes as far as it can now.
    fn step(&mut self, address: &Address, question: &Question, poll: &Poll) {
        while self.said.is_none()
            && let Some(link) = &mut self.link
        {
            match link.step() {
                Ok(None) => return,
                Ok(Some(said @ Said::Failed(_))) => (self.link, self.said) = (None, Some(said)),
                // It was asked before this look, and may have said so before it.
                Ok(Some(_)) if self.stale => {
                    self.stale = false;
                    link.probe.ask();
                }
                Ok(Some(said)) => self.said = Some(said),
                Err(err) => {
                    self.link = None;
                    if self.kept {
                        self.kept = false;
                        self.connect(address, question, poll);
                    } else {
                        self.connect_next(address, question, poll, err);
                    }
                }
            }
        }
    }
}

impl Link {
    fn step(&mut self) -> io::Result<Option<Said>> {
        let Link { socket, connected, probe } = self;
        if !*connected {
            if !socket.is_connected()? {
                return Ok(None);
            }
            *connected = true;
        }
        loop {
            while !probe.unsent().is_empty() {
                match socket.write(probe.unsent())? {
                    0 => break,
                    written => probe.wrote(written),
                }
            }
            if let Some(said) = probe.poll_said() {
                return Ok(Some(said));
            }
            match socket.read(probe.space())? {
                Some(read) => probe.filled(read),
                // Only now the system announces the next bytes.
                None => return Ok(None),
            }
        }
    }
}

fn cannot(err: &io::Error) -> Said {
    Said::Failed(NodeFailure::Connect { reason: error::reason(err) })
}
