//! Calls of this manager that wait for the same lock: in line, first come first served.
//!
//! Only the first asks the nodes, and nobody does while the manager holds the lock itself: a release sends the first
//! one's acquire along, in the same write. Notices of releases come from the nodes and wake the first. They are hints:
//! one too many costs a round, one too few the time until the next try.
//!
//! Locks are taken in this order: the lines, then a ticket.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::engine::nodes::fanout::Fanout;
use crate::engine::nodes::outgoing::Outgoing;
use crate::engine::wait::queue::{Hold, WaitQueue, WaitQueues};
use crate::engine::wait::ticket::{Handover, Ticket};
use crate::error::HeldBy;
use crate::ids::{ClientId, NodeId, NodeSet};
use crate::stats::{Counters, count, count_down};
use crate::sys::sync::Mutex;
use crate::time;
use crate::wire::{Command, Plan};

/// All lines of a manager.
pub(crate) struct Queues {
    pub(super) client: ClientId,
    pub(super) nodes: usize,
    /// The shortest and the longest pause between the attempts of a call.
    pub(super) pauses: (Duration, Duration),
    pub(super) lines: Mutex<WaitQueues>,
    pub(super) counters: Arc<Counters>,
}

impl Queues {
    pub(crate) fn new(client: ClientId, nodes: usize, config: &Config, counters: Arc<Counters>) -> Queues {
        let pauses = (config.retry_min, config.retry_max);
        Queues { client, nodes, pauses, lines: Mutex::default(), counters }
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
        let leave = Outgoing::release(Plan::leave(key, self.client), nodes, keep);
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
