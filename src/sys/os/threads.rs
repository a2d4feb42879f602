//! Threads, condition variables and clocks: the only file that starts or joins a thread, or reads a
//! clock.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::MutexGuard;

pub(crate) use std::thread::{ThreadId, current as this_thread, yield_now};

/// A point in time for waiting and for time-outs.
pub(crate) type Tick = Instant;

/// Reads the clock for waiting.
pub(crate) fn tick() -> Tick {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    Instant::now()
}

/// Since 1970.
pub(crate) fn wall_clock() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    let now = SystemTime::now();
    // A wall clock before 1970 counts as none: all differences are zero, and the other clock
    // decides.
    now.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
}

/// Since some fixed point; runs during suspend where the system has such a clock.
#[cfg(unix)]
pub(crate) fn boot_clock() -> Duration {
    // macOS' CLOCK_MONOTONIC goes on during sleep, unlike the clock behind `Instant` there.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    let now = rustix::time::clock_gettime(CLOCK);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

/// Since some fixed point.
#[cfg(not(unix))]
pub(crate) fn boot_clock() -> Duration {
    // No safe reading of such a clock here. With the standard library's, only the wall clock shows
    // a suspend.
    static START: std::sync::OnceLock<Tick> = std::sync::OnceLock::new();
    tick().saturating_duration_since(*START.get_or_init(tick))
}

/// A condition variable for mutexes of `parking_lot` without a table of its sleepers.
///
/// That of `parking_lot` keeps all waiting threads of the process in one hash table of pointers to
/// thread-local memory. In a forked child the entries of the parent's threads stay, although those
/// threads do not exist. New threads of the child can get the same addresses, which makes the
/// table's lists corrupt: a manager in the child would have undefined behaviour. That of the
/// standard library keeps no such table.
#[derive(Default)]
pub(crate) struct Condvar {
    sleepers: AtomicUsize,
    /// Number of notifications.
    calls: std::sync::Mutex<u64>,
    called: std::sync::Condvar,
}

impl Condvar {
    /// Unlocks the mutex of `guard` and sleeps until a notification, or until `until`. False at
    /// `until`.
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>, until: Option<Tick>) -> bool {
        // RACE: T1 counts itself with the caller's mutex locked; T2 locks that mutex and notifies.
        // Therefore T2 finds T1 counted, and waits for `calls` until T1 sleeps.
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

    /// Whether any thread sleeps. Costs one load if none does.
    fn call(&self) -> bool {
        let is_anybody_there = self.sleepers.load(Relaxed) != 0;
        if is_anybody_there {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            *calls = calls.wrapping_add(1);
        }
        is_anybody_there
    }
}

/// A thread that is joined within a bound.
#[derive(Debug)]
pub(crate) struct OwnThread {
    name: String,
    handle: JoinHandle<()>,
    /// Disconnected at the end of the thread. A join has no time limit of its own.
    ended: Receiver<()>,
}

impl OwnThread {
    pub(crate) fn spawn(
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<OwnThread> {
        let (end, ended): (Sender<()>, _) = bounded(0);
        let handle = thread::Builder::new().name(name.clone()).spawn(move || {
            let _end = end;
            work();
        })?;
        Ok(OwnThread {
            name,
            handle,
            ended,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the end of the thread until `deadline`. `None` if it still runs.
    pub(crate) fn join_until(self, deadline: Tick) -> Option<thread::Result<()>> {
        if self.handle.thread().id() == thread::current().id() {
            // A thread of the manager may drop the last handle. To join itself would block for
            // ever.
            return Some(Ok(()));
        }
        let left = deadline.saturating_duration_since(tick());
        if matches!(
            self.ended.recv_timeout(left),
            Err(crossbeam_channel::RecvTimeoutError::Timeout)
        ) {
            return None;
        }
        Some(self.handle.join())
    }
}
