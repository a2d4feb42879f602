//! A condition variable for mutexes of `parking_lot` that knows nothing of who sleeps.
//!
//! That of `parking_lot` has all sleepers of the process in one table, by the address of what each thread keeps for itself. A fork
//! leaves them there without their threads. The child's first threads get the same addresses, and then the table is no table any
//! more: a manager of the child's own would read and write anything. That of the standard library is a number in a place.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use parking_lot::MutexGuard;

use super::clock::{Tick, tick};

#[derive(Default)]
pub(crate) struct Condvar {
    sleepers: AtomicUsize,
    /// How often somebody has called them.
    calls: Mutex<u64>,
    called: std::sync::Condvar,
}

pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.sleep(guard, None);
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> WaitTimeoutResult {
        self.sleep(guard, Some(timeout))
    }

    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Tick) -> WaitTimeoutResult {
        self.sleep(guard, Some(deadline.saturating_duration_since(tick())))
    }

    fn sleep<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Option<Duration>) -> WaitTimeoutResult {
        // RACE: with the caller's mutex still locked. Who locks that after this and calls finds the sleeper counted, and waits for
        // `calls` until it sleeps.
        self.sleepers.fetch_add(1, Relaxed);
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *calls;
        MutexGuard::unlocked(guard, || {
            let sleeps_on = |it: &mut u64| *it == before;
            let calls = match timeout {
                None => self.called.wait_while(calls, sleeps_on).unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let slept = self.called.wait_timeout_while(calls, timeout, sleeps_on);
                    slept.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            self.sleepers.fetch_sub(1, Relaxed);
            WaitTimeoutResult(*calls == before)
        })
    }

    pub(crate) fn notify_one(&self) {
        if self.call() {
            self.called.notify_one();
        }
    }

    pub(crate) fn notify_all(&self) {
        if self.call() {
            self.called.notify_all();
        }
    }

    /// Whether anybody sleeps. It costs a look at a number if nobody does.
    fn call(&self) -> bool {
        let is_anybody_there = self.sleepers.load(Relaxed) != 0;
        if is_anybody_there {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            *calls = calls.wrapping_add(1);
        }
        is_anybody_there
    }
}
