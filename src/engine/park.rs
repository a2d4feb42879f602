//! Parking: threads sleep on a `Parker`, and signals wake them.

use std::collections::HashMap;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use crate::sys::sync::{Condvar, Mutex};
use crate::time::Tick;

/// A signal, given once and for ever. It wakes all threads that watch it.
#[derive(Clone, Default)]
pub(crate) struct Signal {
    shared: Arc<Mutex<Sleepers>>,
}

#[derive(Default)]
struct Sleepers {
    given: bool,
    next: u64,
    sleepers: HashMap<u64, Arc<Parker>>,
}

/// Sleeping place of one thread. Several signals can wake it.
#[derive(Default)]
pub(crate) struct Parker {
    is_woken: Mutex<bool>,
    wake: Condvar,
}

impl Parker {
    /// Wakes the thread, or ends its next sleep at once.
    ///
    /// Called with nothing locked: otherwise the woken thread is handed the mutex before it runs,
    /// and the next waker waits for that thread.
    pub(crate) fn wake(&self) {
        *self.is_woken.lock() = true;
        self.wake.notify_one();
    }

    /// Sleeps until `until` (`None`: no limit), or until a wake.
    pub(crate) fn sleep(&self, until: Option<Tick>) {
        let mut is_woken = self.is_woken.lock();
        while !*is_woken && self.wake.wait(&mut is_woken, until) {}
        *is_woken = false;
    }

    /// Lets `signals` wake the thread while the result lives.
    ///
    /// RACE: T1 gives a signal; T2 watches it after that and is not woken. Therefore T2 looks at
    /// the signals after this call.
    pub(crate) fn watch<'a>(self: &Arc<Parker>, signals: &'a [&'a Signal]) -> Watching<'a> {
        let mut entries = Vec::new();
        for signal in signals {
            let mut shared = signal.shared.lock();
            if !shared.given {
                let id = shared.next;
                shared.next = id.wrapping_add(1);
                shared.sleepers.insert(id, Arc::clone(self));
                entries.push((*signal, id));
            }
        }
        Watching { entries }
    }
}

/// See [`Parker::watch`].
pub(crate) struct Watching<'a> {
    entries: Vec<(&'a Signal, u64)>,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        for (signal, id) in &self.entries {
            signal.shared.lock().sleepers.remove(id);
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
}

/// Sleeps until `until`, or until one of the signals is given.
pub(crate) fn sleep(until: Tick, signals: &[&Signal]) {
    let parker = Arc::new(Parker::default());
    let _watching = parker.watch(signals);
    if !signals.iter().any(|it| it.is_given()) {
        parker.sleep(Some(until));
    }
}

/// Ends waiting calls from another thread.
///
/// Clones are the same handle. Give it to a lock with
/// [`Mutex::cancelled_by`](crate::Mutex::cancelled_by). After [`cancel`](CancelHandle::cancel)
/// every waiting call for such a lock, now or later, returns
/// [`AcquireError::Cancelled`](crate::AcquireError::Cancelled). A call with a round under way ends
/// that round first, which takes at most one response timeout, and the connect timeout for nodes
/// without a connection. Existing guards are not affected.
///
/// ```no_run
/// # fn run(locks: &quorlock::LockManager) -> Result<(), Box<dyn std::error::Error>> {
/// let cancel = quorlock::CancelHandle::new();
/// let report = locks.mutex("nightly-report").cancelled_by(&cancel);
/// let waiter = std::thread::spawn(move || report.lock().map(drop));
/// cancel.cancel(); // for example when the program must end
/// assert!(waiter.join().unwrap().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[doc(alias("CancelToken", "CancellationToken"))]
pub struct CancelHandle {
    pub(crate) signal: Signal,
}

// Its mutex is not poisoned, and no code under it panics.
impl UnwindSafe for CancelHandle {}
impl RefUnwindSafe for CancelHandle {}

impl CancelHandle {
    /// A handle that has not been cancelled.
    #[must_use]
    pub fn new() -> CancelHandle {
        CancelHandle::default()
    }

    /// Ends all waiting calls with this handle, now and in future. Does not block.
    pub fn cancel(&self) {
        self.signal.give();
    }

    /// Whether [`cancel`](CancelHandle::cancel) has been called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.signal.is_given()
    }
}

impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelHandle")
            .field("is_cancelled", &self.is_cancelled())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::time;

    /// Only ever waited for by a test that fails.
    fn far() -> Tick {
        time::tick().checked_add(Duration::from_secs(30)).unwrap()
    }

    #[test]
    fn a_wake_up_before_the_sleep_prevents_it() {
        let parker = Parker::default();
        let until = far();

        parker.wake();
        parker.sleep(Some(until));

        assert!(time::tick() < until);
    }

    #[test]
    fn a_signal_wakes_its_watchers_and_keeps_no_former_ones() {
        let signal = Signal::default();
        let parkers = [(); 3].map(|()| Arc::new(Parker::default()));
        let until = far();
        {
            let signals = [&signal];
            let _left = parkers[0].watch(&signals);
        }
        assert!(signal.shared.lock().sleepers.is_empty());

        let signals = [&signal];
        let _watching: Vec<_> = parkers.iter().map(|it| it.watch(&signals)).collect();
        signal.give();

        parkers.iter().for_each(|it| it.sleep(Some(until)));
        assert!(signal.is_given() && time::tick() < until);
    }
}
