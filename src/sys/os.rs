//! What the operating system gives.

mod socket;
mod threads;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

pub(crate) use crossbeam_channel::{Receiver, Sender, unbounded};
pub(crate) use mio::{Events, Poll, Registry, Token, Waker};
pub(super) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, fence};

pub(crate) use socket::Socket;
pub(super) use threads::Condvar;
pub(crate) use threads::{
    OwnThread, SPINS_MAX, ThreadId, Tick, boot_clock, is_unwinding, run_aside, this_thread, tick,
    wall_clock, yield_now,
};

/// What waits until a thread has nothing locked, or has done something else.
pub(super) type Work = Box<dyn FnOnce()>;
/// The same for another thread.
pub(crate) type SendWork = Box<dyn FnOnce() + Send>;
/// Where a thread leaves it.
pub(crate) type Leave = Arc<dyn Fn(SendWork) + Send + Sync>;

// Of each thread, for `sync`.
thread_local! {
    /// How many mutexes it has locked.
    pub(super) static LOCKED: Cell<usize> = const { Cell::new(0) };
    /// Something waits until it has none locked.
    pub(super) static IS_WAITING: Cell<bool> = const { Cell::new(false) };
    /// What that is.
    pub(super) static WAITING: RefCell<Vec<Work>> = const { RefCell::new(Vec::new()) };
    /// What comes after the work that is done in turn; `None` if there is no such work.
    pub(super) static NEXT: RefCell<Option<Vec<Work>>> = const { RefCell::new(None) };
    /// Where it leaves what belongs to users, if it is one of ours.
    pub(super) static LEAVE: RefCell<Option<Leave>> = const { RefCell::new(None) };
}

/// Fills it from the system's generator.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    getrandom::fill(bytes)
}
