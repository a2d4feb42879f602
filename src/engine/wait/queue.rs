//! The calls that wait for one lock, and whether the manager holds it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::engine::wait::ticket::Ticket;
use crate::error::HeldBy;
use crate::sys::{ThreadId, this_thread};

/// By lock key.
pub(super) type WaitQueues = HashMap<Arc<[u8]>, WaitQueue>;

/// The queue of one lock.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// The manager holds the lock.
    pub(super) holder: Option<Hold>,
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
    pub(super) fn of_this_thread(id: u64) -> Hold {
        Hold { id, taker: this_thread() }
    }
}

impl WaitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.holder.is_none() && self.tickets.is_empty()
    }

    /// Whether the manager holds the lock itself, as the calling thread sees it.
    pub(super) fn held_by(&self) -> HeldBy {
        match self.holder {
            Some(hold) if hold.taker == this_thread() => HeldBy::ThisThread,
            Some(_) => HeldBy::ThisProcess,
            None => HeldBy::Other,
        }
    }

    pub(super) fn is_held_by(&self, id: u64) -> bool {
        self.holder.is_some_and(|it| it.id == id)
    }

    /// Lets the first call ask the nodes if the manager does not hold the lock, and none otherwise.
    pub(super) fn admit_first(&self) {
        let Some(first) = self.tickets.front() else { return };
        let mut state = first.state.lock();
        let may_ask = self.holder.is_none();
        if may_ask && !state.may_ask {
            state.try_at = None;
            first.parker.wake();
        }
        state.may_ask = may_ask;
    }
}
