//! Threads that wait for something that is not a reply, and how to wake them before their time.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::time::Tick;

/// A signal that is given once and stays given, and wakes everybody who sleeps on it.
#[derive(Clone, Default)]
pub(crate) struct Signal {
    shared: Arc<Mutex<Sleepers>>,
}

#[derive(Default)]
struct Sleepers {
    given: bool,
    next: u64,
    sleepers: HashMap<u64, Arc<Bed>>,
}

/// What one thread sleeps on; it may be listed with several signals.
#[derive(Default)]
pub(crate) struct Bed {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Bed {
    /// Wakes the thread, or lets its next sleep end at once.
    pub(crate) fn wake(&self) {
        *self.woken.lock() = true;
        self.wake.notify_one();
    }

    /// Sleeps until `until` (`None`: without end), until somebody wakes it, or until one of the signals is given.
    pub(crate) fn sleep(self: &Arc<Bed>, until: Option<Tick>, signals: &[&Signal]) {
        // RACE: listed first and looked at after: a signal that is given in between finds the bed and marks it.
        let listed: Vec<_> = signals.iter().map(|it| (it, it.list(self))).collect();
        let mut woken = self.woken.lock();
        while !*woken && listed.iter().all(|(_, id)| id.is_some()) {
            match until {
                Some(until) if self.wake.wait_until(&mut woken, until).timed_out() => break,
                Some(_) => {}
                None => self.wake.wait(&mut woken),
            }
        }
        *woken = false;
        drop(woken);
        for (signal, id) in listed {
            if let Some(id) = id {
                signal.strike(id);
            }
        }
    }
}

impl Signal {
    pub(crate) fn give(&self) {
        let sleepers: Vec<_> = {
            let mut shared = self.shared.lock();
            shared.given = true;
            shared.sleepers.drain().map(|(_, it)| it).collect()
        };
        sleepers.iter().for_each(|it| it.wake());
    }

    pub(crate) fn is_given(&self) -> bool {
        self.shared.lock().given
    }

    /// Lists a sleeper; false if the signal has been given already.
    fn list(&self, bed: &Arc<Bed>) -> Option<u64> {
        let mut shared = self.shared.lock();
        if shared.given {
            return None;
        }
        let id = shared.next;
        shared.next = shared.next.wrapping_add(1);
        shared.sleepers.insert(id, Arc::clone(bed));
        Some(id)
    }

    fn strike(&self, id: u64) {
        self.shared.lock().sleepers.remove(&id);
    }
}

/// Sleeps until `until`, or until one of the signals is given.
pub(crate) fn sleep(until: Tick, signals: &[&Signal]) {
    Arc::new(Bed::default()).sleep(Some(until), signals);
}

/// Ends waiting calls from another thread.
///
/// Clones are the same handle. Give it to a lock with [`Mutex::cancelled_by`](crate::Mutex::cancelled_by); once
/// [`cancel`](CancelHandle::cancel) is called, every call that waits for such a lock, now or later, returns
/// [`AcquireError::Cancelled`](crate::AcquireError::Cancelled). A call whose round is under way ends that round first,
/// which takes at most one response timeout. Guards that are held already are not affected.
///
/// ```no_run
/// # fn run(locks: &quorlock::LockManager) -> Result<(), Box<dyn std::error::Error>> {
/// let cancel = quorlock::CancelHandle::new();
/// let report = locks.mutex("nightly-report").cancelled_by(&cancel);
/// let waiter = std::thread::spawn(move || report.lock().map(drop));
/// cancel.cancel(); // for example when the program is asked to end
/// assert!(waiter.join().unwrap().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct CancelHandle {
    signal: Signal,
}

impl CancelHandle {
    /// A handle that has not been cancelled.
    #[must_use]
    pub fn new() -> CancelHandle {
        CancelHandle::default()
    }

    /// Ends all calls that wait with this handle, now and in future. Does not block.
    pub fn cancel(&self) {
        self.signal.give();
    }

    /// Whether [`cancel`](CancelHandle::cancel) has been called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.signal.is_given()
    }

    pub(crate) fn signal(&self) -> &Signal {
        &self.signal
    }
}

impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelHandle").field("is_cancelled", &self.is_cancelled()).finish()
    }
}
