//! A call that waits for a lock, as others see it: who hands it the lock, or tells it of a release.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::fanout::Fanout;
use crate::engine::nodes::outgoing::Outgoing;
use crate::engine::park::Parker;
use crate::engine::round::admission::Slot;
use crate::engine::round::attempt::Attempt;
use crate::engine::round::outcome::{LostAttempt, NotWon};
use crate::engine::round::request::{Known, Request};
use crate::ids::{NodeId, NodeSet};
use crate::logic::quorum;
use crate::logic::wait;
use crate::sys::sync::Mutex;
use crate::time::{self, Tick};
use crate::wire::{LAST, QueuePolicy};

/// One call's place in a line.
pub(crate) struct Ticket {
    pub(super) request: Request,
    pub(super) joined: Tick,
    pub(super) parker: Arc<Parker>,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// First in line, and the manager does not hold the lock: the call asks the nodes.
    pub(super) up: bool,
    /// When it asks them next if it hears of nothing; at once if `None`.
    pub(super) try_at: Option<Tick>,
    /// Nodes that have announced a release since the last attempt began, and when the first of them did.
    pub(super) told: NodeSet,
    pub(super) told_at: Option<Tick>,
    /// How long the others are waited for after that.
    pub(super) grace: Duration,
    pub(super) known: Known,
    pub(super) handover: Handover,
    /// The last attempt of the first in line, which has given up because of an outage.
    pub(super) given_up: Option<Arc<LostAttempt>>,
}

/// An attempt that whoever releases the lock makes for the call.
#[derive(Default)]
pub(super) enum Handover {
    #[default]
    None,
    /// It is being made. `awaited`: the call has nothing else to wait for any more.
    Coming {
        awaited: bool,
    },
    Made(Attempt),
}

impl State {
    /// When to ask the nodes; `None` for at once.
    pub(super) fn next_try(&self, nodes: usize) -> Option<Tick> {
        let in_time = self.told_at.and_then(|it| it.checked_add(self.grace));
        wait::next_try(self.try_at?, quorum(nodes), self.told.len(), in_time)
    }
}

impl Ticket {
    pub(super) fn tell(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.told.insert(node);
        state.told_at.get_or_insert_with(time::tick);
        drop(state);
        self.parker.wake();
    }

    /// When the call began that comes next, as far as others who wait are concerned.
    pub(crate) fn since(&self, fanout: &Fanout) -> u64 {
        if self.state.lock().known.has_no_place { LAST } else { self.request.since(fanout) }
    }

    /// Prepares the attempt that the call will find made, see [`Queues::pass_on`]; the result has to be sent.
    pub(crate) fn prepare(&self, fanout: &Fanout, slot: Slot) -> Result<(Attempt, Outgoing), NotWon> {
        let known = self.state.lock().known;
        let parker = Arc::clone(&self.parker);
        // Also for a lock that is not fair: the calls of a busy manager would hand it on among themselves for ever.
        let policy = QueuePolicy { fair: true, ..self.request.policy };
        Attempt::prepare(fanout, slot, &self.request, known, policy, Some(Box::new(move || parker.wake())))
    }

    /// Gives the call its attempt, which has been sent.
    ///
    /// RACE: not before it was sent. The call may end it at once, and what it then takes back must run behind it. The
    /// call's thread sleeps on, until the attempt is decided.
    pub(crate) fn make(&self, attempt: Attempt) {
        self.set_handover(Handover::Made(attempt));
    }

    /// Lets the call try by itself.
    pub(crate) fn make_none(&self) {
        self.state.lock().try_at = None;
        self.set_handover(Handover::None);
        self.parker.wake();
    }

    fn set_handover(&self, to: Handover) {
        let before = std::mem::replace(&mut self.state.lock().handover, to);
        if matches!(before, Handover::Coming { awaited: true }) {
            self.parker.wake();
        }
    }

    /// Sees to it that the call looks after its attempt, decided or not.
    pub(crate) fn wake(&self) {
        self.parker.wake();
    }
}
