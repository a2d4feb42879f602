//! The calls that wait for one lock, and the holds that the manager has of it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::engine::wait::ticket::{Handover, Ticket};
use crate::ids::NodeSet;
use crate::logic::acquire::Rule;
use crate::sys::{ThreadId, this_thread};

/// By lock key.
pub(super) type WaitQueues = HashMap<Arc<[u8]>, WaitQueue>;

/// The queue of one lock.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// The manager holds the lock, alone.
    holder: Option<Hold>,
    /// The manager's holds of a lock that is shared.
    readers: Vec<Hold>,
    /// The manager's holds of sets of locks that this one belongs to. They say whose it is, and nobody waits for that.
    in_sets: Vec<Hold>,
    pub(super) tickets: VecDeque<Arc<Ticket>>,
}

/// A hold of the manager.
#[derive(Clone, Copy)]
pub(super) struct Hold {
    id: u64,
    /// The thread that took it. The guard may be another thread's by now.
    taker: ThreadId,
}

impl Hold {
    fn of_this_thread(id: u64) -> Hold {
        Hold { id, taker: this_thread() }
    }
}

impl WaitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.holder.is_none() && self.readers.is_empty() && self.in_sets.is_empty() && self.tickets.is_empty()
    }

    /// The calling thread has taken the lock.
    pub(super) fn begin_hold(&mut self, id: u64, rule: Rule) {
        let hold = Hold::of_this_thread(id);
        match rule {
            Rule::Exclusive => self.holder = Some(hold),
            Rule::Shared => self.readers.push(hold),
        }
    }

    /// The calling thread has taken a set of locks with this one.
    pub(super) fn begin_hold_of_set(&mut self, id: u64) {
        self.in_sets.push(Hold::of_this_thread(id));
    }

    pub(super) fn end_hold_of_set(&mut self, id: u64) {
        self.in_sets.retain(|it| it.id != id);
    }

    /// Ends the hold; false if there is none with this id.
    pub(super) fn end_hold(&mut self, id: u64) -> bool {
        let before = self.readers.len();
        self.readers.retain(|it| it.id != id);
        let is_held = self.is_held_by(id);
        if is_held {
            self.holder = None;
        }
        is_held || self.readers.len() < before
    }

    /// The hold `id` is that of a reader from now on, and is called `reader`.
    pub(super) fn share_hold(&mut self, id: u64, reader: u64) {
        if let Some(hold) = self.holder.take_if(|it| it.id == id) {
            self.readers.push(Hold { id: reader, ..hold });
        }
    }

    /// Whether the manager holds the lock alone.
    pub(super) fn is_held(&self) -> bool {
        self.holder.is_some()
    }

    /// Puts a call behind those that came before it. One that reads and is not fair comes before the first that writes: it
    /// may be that of a thread that reads already, and for which that one waits.
    pub(super) fn join(&mut self, ticket: Arc<Ticket>) {
        let passes = ticket.reads() && !ticket.request.policy.fair;
        let place = if passes { self.readers_in_front() } else { self.tickets.len() };
        self.tickets.insert(place, ticket);
    }

    /// How many calls that read stand before the first that writes.
    fn readers_in_front(&self) -> usize {
        self.tickets.iter().take_while(|it| it.reads()).count()
    }

    /// The calls that may ask the nodes together, if the manager does not hold the lock alone: the first, or all that read
    /// and stand before the first that writes.
    pub(super) fn in_front(&self) -> impl Iterator<Item = &Arc<Ticket>> {
        self.tickets.iter().take(self.len_of_front())
    }

    fn len_of_front(&self) -> usize {
        self.readers_in_front().max(1)
    }

    /// Which threads took the manager's holds.
    pub(super) fn takers(&self) -> impl Iterator<Item = ThreadId> {
        self.holder.iter().chain(&self.readers).chain(&self.in_sets).map(|it| it.taker)
    }

    fn is_held_by(&self, id: u64) -> bool {
        self.holder.is_some_and(|it| it.id == id)
    }

    /// Lets the calls [in front](WaitQueue::in_front) ask the nodes if the manager does not hold the lock alone, and none
    /// otherwise. A call that writes asks although calls of the manager read: so it stands in the lists of the nodes before
    /// readers that come later.
    pub(super) fn admit(&self) {
        let admitted = if self.holder.is_none() { self.len_of_front() } else { 0 };
        for (place, ticket) in self.tickets.iter().enumerate() {
            let mut state = ticket.state.lock();
            let may_ask = place < admitted;
            if !may_ask && !state.may_ask {
                // Nor may those behind it.
                break;
            }
            if may_ask && !state.may_ask {
                state.try_at = None;
                ticket.parker.wake();
            }
            state.may_ask = may_ask;
        }
    }

    /// Ends the hold `id` for the first call, whose attempt is made by the caller. `None` if that is not for the caller to
    /// do.
    pub(super) fn pass_on(&mut self, id: u64) -> Option<Arc<Ticket>> {
        // Readers hand nothing over: a call that waits behind them has asked, and is told when the last of all has gone.
        let first = Arc::clone(self.tickets.front().filter(|_| self.is_held_by(id))?);
        let mut state = first.state.lock();
        if !matches!(state.handover, Handover::None) {
            // RACE: this hold came between an earlier release and the acquire that goes along with it, and the call has not
            // seen that attempt yet. Ours would replace it, and its keys would not be taken back.
            return None;
        }
        self.holder = None;
        // So that a notice that comes in between counts.
        state.may_ask = true;
        (state.announced, state.announced_at) = (NodeSet::default(), None);
        state.handover = Handover::Preparing { awaited: false };
        drop(state);
        Some(first)
    }
}
