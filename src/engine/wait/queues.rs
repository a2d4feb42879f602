//! The wait queues of a manager: one for each lock that calls of it wait for, first come first served.
//!
//! Only the first call of a queue asks the nodes, and none does while the manager holds the lock itself: a release sends
//! the acquire of the first call along, in the same write. Notices of releases come from the nodes and wake the first
//! call. They are hints: one too many costs a round, one too few the time until the next try.
//!
//! Mutexes are locked in this order: the queues, then a ticket.

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
use crate::wire::Plan;

/// All wait queues of a manager.
pub(crate) struct Queues {
    pub(super) client: ClientId,
    pub(super) nodes: usize,
    /// The shortest and the longest pause between the attempts of a call.
    pub(super) pauses: (Duration, Duration),
    pub(super) by_key: Mutex<WaitQueues>,
    pub(super) counters: Arc<Counters>,
}

impl Queues {
    pub(crate) fn new(client: ClientId, nodes: usize, config: &Config, counters: Arc<Counters>) -> Queues {
        let pauses = (config.retry_min, config.retry_max);
        Queues { client, nodes, pauses, by_key: Mutex::default(), counters }
    }

    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    /// Notes that the manager holds the lock, by the hold `id`.
    pub(crate) fn begin_hold(&self, key: &Arc<[u8]>, id: u64) {
        let mut queues = self.by_key.lock();
        let queue = queues.entry(Arc::clone(key)).or_default();
        queue.holder = Some(Hold::of_this_thread(id));
        queue.admit_first();
    }

    /// Whether the manager holds the lock itself, as the calling thread sees it.
    pub(crate) fn held_by(&self, key: &[u8]) -> HeldBy {
        let queues = self.by_key.lock();
        queues.get(key).map_or(HeldBy::Other, WaitQueue::held_by)
    }

    /// Notes that the hold `id` is over, if a call waits. The caller prepares the attempt of that call, and then has to
    /// [hand it over](Ticket::hand_over), or to [let the call ask](Ticket::let_ask) for itself.
    ///
    /// RACE: while no call waits, the hold goes on until its release is sent and [`Queues::end_hold`] is called. A call that
    /// came in between would ask the nodes before that and be refused, and the release would remove it from their waiting
    /// lists.
    pub(crate) fn pass_on(&self, key: &[u8], id: u64) -> Option<Arc<Ticket>> {
        let mut queues = self.by_key.lock();
        let queue = queues.get_mut(key).filter(|it| it.is_held_by(id))?;
        let first = Arc::clone(queue.tickets.front()?);
        let mut state = first.state.lock();
        if !matches!(state.handover, Handover::None) {
            // RACE: this hold came between an earlier release and the acquire that goes along with it, and the call has not
            // seen that attempt yet. Ours would replace it, and its keys would not be taken back.
            return None;
        }
        queue.holder = None;
        // So that a notice that comes in between counts.
        state.may_ask = true;
        (state.announced, state.announced_at) = (NodeSet::default(), None);
        state.handover = Handover::Preparing { awaited: false };
        drop(state);
        Some(first)
    }

    /// Notes that the hold `id` is over, for a reason that says nothing about the nodes. The next call tries by itself.
    pub(crate) fn end_hold(&self, key: &[u8], id: u64) {
        let mut queues = self.by_key.lock();
        let Some(queue) = queues.get_mut(key).filter(|it| it.is_held_by(id)) else { return };
        queue.holder = None;
        queue.admit_first();
        if queue.is_empty() {
            queues.remove(key);
        }
    }

    /// A node has announced that the lock `key` was released. `leave` is called if no call waits for that, and leaves the
    /// node's waiting list; it must not block.
    pub(crate) fn released(&self, node: NodeId, key: &[u8], leave: &mut dyn FnMut()) {
        count(&self.counters.notices);
        // RACE: with the queues locked. A call that begins to wait now enters the list after that.
        let queues = self.by_key.lock();
        match queues.get(key).filter(|it| it.holder.is_none()).and_then(|it| it.tickets.front()) {
            Some(first) => first.released(node),
            None => leave(),
        }
    }

    /// Takes this manager off the waiting lists of a lock, without a wait. `keep`: how long that is worth sending.
    pub(crate) fn leave_lists(&self, fanout: &Fanout, plan: &Plan, nodes: NodeSet, keep: Duration) {
        let leave = Outgoing::release(plan.leave(self.client), nodes, keep);
        fanout.send(leave, None, None, time::tick()).finish();
    }

    /// No call waits, and the manager holds nothing.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.lock().is_empty()
    }

    pub(super) fn remove(&self, queues: &mut WaitQueues, ticket: &Arc<Ticket>, held: Option<u64>) {
        let key = ticket.request.spec.plan.key();
        let Some(queue) = queues.get_mut(key) else { return };
        let before = queue.tickets.len();
        queue.tickets.retain(|it| !Arc::ptr_eq(it, ticket));
        if queue.tickets.len() < before {
            count_down(&self.counters.waiting);
        }
        if let Some(id) = held {
            queue.holder = Some(Hold::of_this_thread(id));
        }
        queue.admit_first();
        if queue.is_empty() {
            queues.remove(key);
        }
    }
}
