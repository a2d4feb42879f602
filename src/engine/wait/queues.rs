//! Calls of this manager that wait for the same lock: in line, first come first served.
//!
//! Only the first asks the nodes, and nobody does while the manager holds the lock itself: a release sends the first
//! one's acquire along, in the same write. Notices of releases come from the nodes and wake the first. They are hints:
//! one too many costs a round, one too few the time until the next try.
//!
//! Locks are taken in this order: the lines, then a ticket.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::fanout::Fanout;
use crate::engine::nodes::outgoing::Outgoing;
use crate::engine::park::Parker;
use crate::engine::round::admission::Slot;
use crate::engine::round::attempt::{Attempt, Known, LostAttempt, NoAttempt, Request};
use crate::engine::round::pending::Pending;
use crate::engine::shared::Shared;
use crate::engine::wait::queue::{Hold, WaitQueue, WaitQueues};
use crate::error::HeldBy;
use crate::ids::{ClientId, NodeId, NodeSet};
use crate::logic::quorum;
use crate::logic::tally::ReleaseRound;
use crate::logic::wait;
use crate::stats::{Counters, count, count_down};
use crate::sys::sync::Mutex;
use crate::time::{self, Tick};
use crate::wire::{Command, LAST, Plan, QueuePolicy};

/// All lines of a manager.
pub(crate) struct Queues {
    pub(super) client: ClientId,
    pub(super) nodes: usize,
    pub(super) lines: Mutex<WaitQueues>,
    pub(super) counters: Arc<Counters>,
}

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

impl Queues {
    pub(crate) fn new(client: ClientId, nodes: usize, counters: Arc<Counters>) -> Queues {
        Queues { client, nodes, lines: Mutex::default(), counters }
    }

    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    /// Notes that the manager holds the lock, by the hold `id`.
    pub(crate) fn begin_hold(&self, key: &Arc<[u8]>, id: u64) {
        let mut lines = self.lines.lock();
        let line = lines.entry(Arc::clone(key)).or_default();
        line.holder = Some(Hold::of_this_thread(id));
        line.set_up();
    }

    /// Whether the manager holds the lock itself, as the calling thread sees it.
    pub(crate) fn held_by(&self, key: &[u8]) -> HeldBy {
        let lines = self.lines.lock();
        lines.get(key).map_or(HeldBy::Other, WaitQueue::held_by)
    }

    /// Notes that the hold `id` is over. The call that comes next, if one does, gets its attempt from the caller, who
    /// must [make](Ticket::make) it or [leave it](Ticket::make_none) to the call.
    ///
    /// RACE: with nobody in line the hold goes on until its release is sent, and [`Queues::end_hold`] is called. A call
    /// that came in between would ask the nodes before that and be refused, and the release would strike it from their
    /// waiting lists.
    pub(crate) fn pass_on(&self, key: &[u8], id: u64) -> Option<Arc<Ticket>> {
        let mut lines = self.lines.lock();
        let line = lines.get_mut(key).filter(|it| it.is_held_by(id))?;
        let first = Arc::clone(line.tickets.front()?);
        let mut state = first.state.lock();
        if !matches!(state.handover, Handover::None) {
            // RACE: this hold came between an earlier release and the acquire that goes along with it, and that attempt
            // is still being made, or not looked at. Put in its place, ours would leave it to nobody, with its keys.
            return None;
        }
        line.holder = None;
        // Up, so that a notice that comes in between is not lost on it.
        state.up = true;
        (state.told, state.told_at) = (NodeSet::default(), None);
        state.handover = Handover::Coming { awaited: false };
        drop(state);
        Some(first)
    }

    /// Notes that the hold `id` is over, for a reason that says nothing about the nodes. The next call tries by itself.
    pub(crate) fn end_hold(&self, key: &[u8], id: u64) {
        let mut lines = self.lines.lock();
        let Some(line) = lines.get_mut(key).filter(|it| it.is_held_by(id)) else { return };
        line.holder = None;
        line.set_up();
        if line.is_empty() {
            lines.remove(key);
        }
    }

    /// A node has announced that the lock `key` was released. `leave` is called if nobody waits for that, so that the
    /// node tells the next one; it must not block.
    pub(crate) fn tell(&self, node: NodeId, key: &[u8], leave: &mut dyn FnMut(Command)) {
        count(&self.counters.notices);
        // RACE: with the lines locked. A call that begins to wait now enters the list behind the farewell.
        let lines = self.lines.lock();
        match lines.get(key).filter(|it| it.holder.is_none()).and_then(|it| it.tickets.front()) {
            Some(first) => first.tell(node),
            None => leave(Plan::leave(key, self.client)),
        }
    }

    /// Takes this manager off the waiting lists of a lock, without a wait. `keep`: how long that is worth sending.
    pub(crate) fn leave_lists(&self, fanout: &Fanout, key: &[u8], nodes: NodeSet, keep: Duration) {
        let leave = Outgoing::release::<Pending<ReleaseRound>>(Plan::leave(key, self.client), nodes, keep, None);
        fanout.send(leave, None, None, time::tick()).finish();
    }

    /// Nobody waits, and the manager holds nothing.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.lock().is_empty()
    }

    pub(super) fn remove(&self, lines: &mut WaitQueues, ticket: &Arc<Ticket>, held: Option<u64>) {
        let key = ticket.request.spec.plan.key();
        let Some(line) = lines.get_mut(key) else { return };
        let before = line.tickets.len();
        line.tickets.retain(|it| !Arc::ptr_eq(it, ticket));
        if line.tickets.len() < before {
            count_down(&self.counters.waiting);
        }
        if let Some(id) = held {
            line.holder = Some(Hold::of_this_thread(id));
        }
        line.set_up();
        if line.is_empty() {
            lines.remove(key);
        }
    }
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
    pub(crate) fn since(&self, shared: &Shared) -> u64 {
        if self.state.lock().known.has_no_place { LAST } else { self.request.since(shared) }
    }

    /// Prepares the attempt that the call will find made, see [`Queues::pass_on`]; the command has to be sent.
    pub(crate) fn prepare(&self, shared: &Shared, slot: Slot) -> Result<(Attempt, Command), NoAttempt> {
        let known = self.state.lock().known;
        let parker = Arc::clone(&self.parker);
        // Also for a lock that is not fair: the calls of a busy manager would hand it on among themselves for ever.
        let policy = QueuePolicy { fair: true, ..self.request.policy };
        Attempt::prepare(shared, slot, &self.request, known, policy, Some(Box::new(move || parker.wake())))
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
