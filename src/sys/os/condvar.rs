//! A condition variable for mutexes of `parking_lot` that knows nothing of who sleeps.
//!
//! That of `parking_lot` keeps all waiting threads of the process in one hash table of pointers to thread-local memory. In a forked
//! child the entries of the parent's threads stay, although those threads do not exist. New threads of the child can get the same
//! addresses, which makes the table's lists corrupt: a manager in the child would have undefined behaviour. That of the standard
//! library keeps no such table.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use parking_lot::MutexGuard;

use super::clock::{Tick, tick};

#[derive(Default)]
pub(crate) struct Condvar {
    sleepers: AtomicUsize,
    /// How often somebody has called them.
    calls: Mutex<u64>,
    called: std::sync::Condvar,
}

impl Condvar {
    /// Unlocks what `guard` has locked, and sleeps until somebody calls, or until `until`: whether somebody has called.
    pub(crate) fn sleep<T>(&self, guard: &mut MutexGuard<'_, T>, until: Option<Tick>) -> bool {
        // RACE: with the caller's mutex still locked. Who locks that after this and calls finds the sleeper counted, and waits for
        // `calls` until it sleeps.
        self.sleepers.fetch_add(1, Relaxed);
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *calls;
        MutexGuard::unlocked(guard, || {
            let sleeps_on = |it: &mut u64| *it == before;
            let calls = match until {
                None => self
                    .called
                    .wait_while(calls, sleeps_on)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let slept = self.called.wait_timeout_while(
                        calls,
                        until.saturating_duration_since(tick()),
                        sleeps_on,
                    );
                    slept.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            self.sleepers.fetch_sub(1, Relaxed);
            *calls != before
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
