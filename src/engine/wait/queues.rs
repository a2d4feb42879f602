//! The wait queues of a manager: one per lock with waiting calls, first come first served.
//!
//! Only the first call of a queue asks the nodes, or all readers in front. No call asks while the manager holds the
//! lock alone: a release enters the first call in the nodes' lists. Nodes hand the lock over to the first call there,
//! of any manager, and publish that: it is their vote.
//!
//! Mutexes are locked in this order: the queues, then a ticket, then a round.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::config::{Config, Margin};
use crate::engine::spec::LockSpec;
use crate::engine::wait::queue::{Owners, Ticket, WaitQueue, WaitQueues};
use crate::error::HeldBy;
use crate::ids::{ClientId, NodeId};
use crate::logic::quorum;
use crate::observer::Journal;
use crate::stats::count;
use crate::sys::sync::Mutex;
use crate::sys::this_thread;
use crate::wire::{HandedOver, LockCommands};

/// All wait queues of a manager.
pub(crate) struct Queues {
    /// This manager in the lists of the nodes.
    pub(crate) client: ClientId,
    /// Number of nodes in a majority.
    pub(super) quorum: usize,
    pub(super) margin: Margin,
    /// Shortest and longest pause between the attempts of a call.
    pub(super) pauses: (Duration, Duration),
    pub(super) by_key: Mutex<WaitQueues>,
    pub(crate) owners: Arc<Owners>,
    pub(super) journal: Arc<Journal>,
}

impl Queues {
    pub(crate) fn new(
        client: ClientId,
        nodes: usize,
        config: &Config,
        journal: Arc<Journal>,
    ) -> Queues {
        Queues {
            client,
            quorum: quorum(nodes),
            margin: config.margin,
            pauses: (config.retry_min, config.retry_max),
            by_key: Mutex::default(),
            owners: Arc::default(),
            journal,
        }
    }

    /// Begins the hold `id` of the calling thread.
    pub(crate) fn begin_hold(&self, spec: &LockSpec, id: u64) {
        let mut queues = self.by_key.lock();
        begin_hold(&mut queues, spec, id);
        change(&mut queues, &spec.commands.key, |queue| queue.admit());
    }

    /// The holder of the lock, or of one of several names, from the view of the calling thread.
    pub(crate) fn held_by(&self, commands: &LockCommands) -> HeldBy {
        let queues = self.by_key.lock();
        let held = iter::once(&commands.key)
            .chain(commands.multi_keys.iter())
            .filter_map(|it| queues.get(it));
        let mut takers = held.flat_map(WaitQueue::takers).peekable();
        if takers.peek().is_none() {
            HeldBy::Other
        } else if takers.any(|it| it == this_thread().id()) {
            HeldBy::ThisThread
        } else {
            HeldBy::ThisProcess
        }
    }

    /// Ends the hold `id` if a call waits and can `enter` the nodes' waiting lists by the release. The call must be
    /// [admitted](Queues::admit) afterwards.
    ///
    /// RACE: T1 ends the hold and is about to send the release; T2, a new call, asks the nodes before the release and
    /// is refused; the release removes T2 from the lists. Therefore without a waiting call the hold goes on until
    /// [`Queues::end_hold`], after the send.
    pub(crate) fn pass_on<T>(
        &self,
        commands: &LockCommands,
        id: u64,
        enter: impl FnOnce(&Arc<Ticket>) -> Option<T>,
    ) -> Option<T> {
        let mut queues = self.by_key.lock();
        let entered = queues.get_mut(&commands.key)?.pass_on(id, enter)?;
        end_multi(&mut queues, commands, id);
        Some(entered)
    }

    /// Admits the calls in front.
    pub(crate) fn admit(&self, key: &[u8]) {
        change(&mut self.by_key.lock(), key, |queue| queue.admit());
    }

    /// Ends the hold `id` without a hand-over. The next call asks by itself.
    pub(crate) fn end_hold(&self, commands: &LockCommands, id: u64) {
        let mut queues = self.by_key.lock();
        end_multi(&mut queues, commands, id);
        change(&mut queues, &commands.key, |queue| {
            if queue.end_hold(id) {
                queue.admit();
            }
        });
    }

    /// A node has handed a lock over, or has a call in its list. False without a call or hold for it.
    pub(crate) fn handed_over(&self, node: NodeId, notice: &HandedOver) -> bool {
        count(&self.journal.counters.notices);
        let ticket = notice.owner().and_then(|it| self.owners.get(it));
        if let Some(ticket) = &ticket
            && !notice.is_question
        {
            ticket.handed_over(node, notice, self.quorum);
        }
        ticket.is_some()
    }

    /// Whether there is neither a waiting call nor a hold.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.lock().is_empty() && self.owners.is_empty()
    }

    pub(super) fn remove(&self, queues: &mut WaitQueues, ticket: &Arc<Ticket>, held: Option<u64>) {
        let spec = &ticket.request.spec;
        let Some(queue) = queues.get_mut(&spec.commands.key) else {
            return;
        };
        let before = queue.tickets.len();
        queue.tickets.retain(|it| !Arc::ptr_eq(it, ticket));
        if queue.tickets.len() < before {
            self.journal.counters.waiting.fetch_sub(1, Relaxed);
        }
        if let Some(id) = held {
            begin_hold(queues, spec, id);
        }
        change(queues, &spec.commands.key, |queue| queue.admit());
    }
}

/// Changes the queue of a lock, if any. Removes an empty queue.
fn change(queues: &mut WaitQueues, key: &[u8], change: impl FnOnce(&mut WaitQueue)) {
    if let Some(queue) = queues.get_mut(key) {
        change(queue);
        if queue.is_empty() {
            queues.remove(key);
        }
    }
}

/// Begins the hold `id` of the calling thread, and of each of several names.
fn begin_hold(queues: &mut WaitQueues, spec: &LockSpec, id: u64) {
    for part in multi_keys(&spec.commands) {
        queues
            .entry(Arc::clone(part))
            .or_default()
            .begin_hold(id, None);
    }
    if !spec.commands.has_slots {
        queues
            .entry(Arc::clone(&spec.commands.key))
            .or_default()
            .begin_hold(id, Some(spec.rule()));
    }
}

/// Keys whose queues only show the holder: the names of a set, and a semaphore.
fn multi_keys(commands: &LockCommands) -> impl Iterator<Item = &Arc<[u8]>> {
    commands
        .multi_keys
        .iter()
        .chain(commands.has_slots.then_some(&commands.key))
}

/// Ends the hold `id` in the queues that only show the holder.
fn end_multi(queues: &mut WaitQueues, commands: &LockCommands, id: u64) {
    for part in multi_keys(commands) {
        change(queues, part, |queue| queue.end_hold_of_set(id));
    }
}
