//! The thread that finds the master of a node that is more than one process, and keeps asking who it is.
//!
//! It asks all members side by side, over connections of its own that it keeps, and waits for none of them longer than
//! half of the connect timeout. Where there is a connection to a master, its answers are what that master's grants count by.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::engine::nodes::member::Member;
use crate::engine::nodes::members::AllMembers;
use crate::engine::nodes::node::Node;
use crate::engine::nodes::status::Members;
use crate::error::NodeFailure;
use crate::logic::group::{Outcome, Rhythm, failing, named_master, only_master, outcome, reports};
use crate::sys::logging::{debug, error};
use crate::sys::sync::Mutex;
use crate::sys::{Poll, WAKE, Waker};
use crate::time::{self, Moment, Tick};
use crate::wire::{Address, Group, Place};

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
pub(crate) struct MasterSearch {
    finder: Arc<Finder>,
    node: Arc<Node>,
    group: Group,
    members: AllMembers,
}

impl MasterSearch {
    /// `address` is the group's, `group` what is in it.
    pub(crate) fn new(
        node: Arc<Node>,
        address: Address,
        group: Group,
        rhythm: Rhythm,
    ) -> io::Result<(MasterSearch, Arc<Finder>)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let finder = Arc::new(Finder { state: Mutex::default(), waker, rhythm });
        let theirs = Arc::clone(&finder);
        let members = AllMembers::new(node.id, address, &group, poll, move || theirs.wake());
        Ok((MasterSearch { finder: Arc::clone(&finder), node, group, members }, finder))
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
                let master = catch_unwind(AssertUnwindSafe(|| self.look(now))).unwrap_or_else(|_| {
                    error!(
                        "{}: the thread that looks for a master panicked and goes on; please report this",
                        self.node.id
                    );
                    Err(NodeFailure::Internal)
                });
                self.conclude(asked, Found { master, asked: began });
            } else {
                self.members.wait(watches.then(|| next.saturating_duration_since(now)));
            }
        }
    }

    /// Asks all members.
    fn look(&mut self, now: Tick) -> Result<Place, NodeFailure> {
        let finder = &self.finder;
        self.members.ask(now, finder.rhythm.look, || finder.state.lock().stopped);
        let shown = self.members.shown();
        let said: Vec<_> = self.members.each_mut().iter_mut().map(Member::end).collect();
        let master = match &self.group {
            Group::Replicated(members) => {
                let place = |it: usize| members.get(it).cloned().ok_or(NodeFailure::Internal);
                only_master(&said, &shown).and_then(place)
            }
            Group::Sentinel { master, .. } => {
                named_master(&said, &shown, master).map(|(host, port)| Place::Tcp { host, port })
            }
            // It has several masters: see `cluster.rs`.
            Group::Cluster(_) => Err(NodeFailure::Internal),
        };
        let all = reports(&said, &shown);
        let place = if let Ok(Place::Tcp { host, port }) = &master { Some((&**host, *port)) } else { None };
        let failing = failing(&all, place);
        self.node.status.publish_members(Members { all, failing });
        master
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
}
