//! What threads meet at: mutexes, condition variables, atomics, channels.
//!
//! Each thread counts how many of these mutexes it has locked, so that nothing that belongs to users (the log, callbacks,
//! the destructors of what they gave us) runs with anything locked: see [`afterwards`].

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::sys::system as raw;
use crate::sys::system::{IS_WAITING, LOCKED, NEXT, Tick, WAITING, is_unwinding};

pub(crate) use crate::sys::system::{AtomicBool, AtomicU64, Receiver, Sender, fence, unbounded};

/// Whether the calling thread has a mutex of ours locked.
pub(crate) fn is_anything_locked() -> bool {
    LOCKED.try_with(|it| it.get() != 0).unwrap_or(false)
}

/// Runs `work` on this thread as soon as that has nothing locked: now, if that is so.
///
/// What belongs to users may take any time, and may come back to us: a log line that is written to a full pipe, or by a
/// logger that asks a guard whether it is valid, must not keep others from what we have locked, nor find it locked itself.
pub(crate) fn afterwards(work: impl FnOnce() + 'static) {
    if !is_anything_locked() {
        work();
        return;
    }
    // Not kept where the thread has come so far in its end that it remembers nothing any more. A line for the log is lost
    // then; no thread of ours locks anything in the destructor of a thread-local.
    let kept = WAITING.try_with(|it| it.borrow_mut().push(Box::new(work)));
    if kept.is_ok() {
        let _ = IS_WAITING.try_with(|it| it.set(true));
    }
}

/// Runs `work` on this thread: now, or after what it runs in this way already. So nothing that users wrote is called out of
/// itself, again and again until the stack is full.
pub(crate) fn in_turn(work: impl FnOnce() + 'static) {
    let mut work = Some(work);
    let is_first = NEXT.try_with(|it| {
        let mut next = it.borrow_mut();
        match (&mut *next, work.take()) {
            (Some(next), Some(work)) => next.push(Box::new(work)),
            (None, now) => {
                work = now;
                *next = Some(Vec::new());
            }
            (Some(_), None) => {}
        }
    });
    let Some(work) = work else { return };
    // It remembers nothing where the thread has come so far in its end.
    let _over = is_first.ok().map(|()| TurnsOver);
    work();
    loop {
        let more = NEXT
            .try_with(|it| it.borrow_mut().as_mut().map(std::mem::take))
            .ok()
            .flatten()
            .unwrap_or_default();
        if more.is_empty() {
            break;
        }
        more.into_iter().for_each(|it| it());
    }
}

/// Ends what is done in turn, also if that panics.
struct TurnsOver;

impl Drop for TurnsOver {
    fn drop(&mut self) {
        // Dropped with nothing borrowed.
        let _left = NEXT.try_with(RefCell::take);
    }
}

/// Whether something waits until this thread has nothing locked.
fn is_anything_waiting() -> bool {
    IS_WAITING.try_with(Cell::get).unwrap_or(false)
}

/// This thread has locked one more.
fn note_lock() {
    let _ = LOCKED.try_with(|it| it.set(it.get().saturating_add(1)));
}

/// Out of line: this is rare, and unlocking is not.
#[cold]
fn run_waiting() {
    let _ = IS_WAITING.try_with(|it| it.set(false));
    let work = WAITING.try_with(|it| std::mem::take(&mut *it.borrow_mut()));
    work.into_iter().flatten().for_each(|it| it());
}

/// What has to be so before a thread falls asleep: whatever it has for the log is not held back until it wakes.
fn assert_nothing_waits() {
    debug_assert!(
        !is_anything_waiting() || is_unwinding(),
        "a thread falls asleep with lines for the log"
    );
}

/// Counts a mutex as unlocked when dropped.
struct Unlock;

impl Drop for Unlock {
    fn drop(&mut self) {
        let left = LOCKED.try_with(|it| {
            it.set(it.get().saturating_sub(1));
            it.get()
        });
        // During a panic it waits on: one more, of a user's logger, would end the process.
        if matches!(left, Ok(0)) && is_anything_waiting() && !is_unwinding() {
            run_waiting();
        }
    }
}

/// Counts a mutex as locked again when dropped.
struct LockAgain;

impl Drop for LockAgain {
    fn drop(&mut self) {
        note_lock();
    }
}

/// As of `parking_lot`; the thread that locks it counts it.
#[derive(Default)]
pub(crate) struct Mutex<T>(raw::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    // In this order: unlocked, and then counted as that.
    raw: raw::MutexGuard<'a, T>,
    _unlock: Unlock,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(raw::Mutex::new(value))
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        counted(self.0.lock())
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().map(counted)
    }
}

fn counted<T>(raw: raw::MutexGuard<'_, T>) -> MutexGuard<'_, T> {
    note_lock();
    MutexGuard {
        raw,
        _unlock: Unlock,
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'a, T> MutexGuard<'a, T> {
    /// Unlocks it for the time of `work`.
    pub(crate) fn unlocked<R>(guard: &mut MutexGuard<'a, T>, work: impl FnOnce() -> R) -> R {
        raw::MutexGuard::unlocked(&mut guard.raw, || {
            drop(Unlock);
            let _again = LockAgain;
            work()
        })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.raw
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[derive(Default)]
pub(crate) struct Condvar(raw::Condvar);

impl Condvar {
    /// Sleeps, with the mutex unlocked, until somebody notifies it; or until `until`, if there is such an end: false then.
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>, until: Option<Tick>) -> bool {
        assert_nothing_waits();
        self.0.sleep(&mut guard.raw, until)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::rc::Rc;

    use super::*;

    #[test]
    fn h11_work_of_users_waits_until_nothing_is_locked() {
        let (outer, inner) = (Mutex::new(()), Mutex::new(()));
        let done = Rc::new(RefCell::new(Vec::new()));
        let work = |number: u32| {
            let done = Rc::clone(&done);
            afterwards(move || {
                assert!(!is_anything_locked());
                done.borrow_mut().push(number);
            });
        };
        work(0);
        assert_eq!(*done.borrow(), [0], "at once");

        let first = outer.lock();
        let second = inner.try_lock().unwrap();
        work(1);
        drop(first);
        work(2);
        assert_eq!((done.borrow().len(), is_anything_waiting()), (1, true));
        drop(second);
        assert_eq!((done.borrow().len(), is_anything_waiting()), (3, false));

        let mut guard = outer.lock();
        work(3);
        MutexGuard::unlocked(&mut guard, || assert_eq!(done.borrow().len(), 4));
        work(4);
        assert_eq!(done.borrow().len(), 4);
        assert!(outer.try_lock().is_none());
        assert!(is_anything_locked(), "a try that failed counts for nothing");
        drop(guard);
        assert!(!is_anything_locked());
        assert_eq!(*done.borrow(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_is_done_in_turn_begins_when_what_began_before_is_over() {
        let done = Rc::new(RefCell::new(String::new()));
        let note = |what: &'static str| {
            let done = Rc::clone(&done);
            move || done.borrow_mut().push_str(what)
        };
        let (b, d, end_of_c) = (note("b"), note("d"), note(")"));
        let c = {
            let begin = note("(c");
            move || {
                begin();
                in_turn(d);
                end_of_c();
            }
        };
        let end_of_a = note(") ");
        let begin = note("(a");
        in_turn(move || {
            begin();
            in_turn(b);
            in_turn(c);
            end_of_a();
        });
        assert_eq!(*done.borrow(), "(a) b(c)d");

        let lost = note(" lost");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            in_turn(move || {
                in_turn(lost);
                resume_unwind(Box::new("on purpose"));
            });
        }));
        assert!(panicked.is_err());
        in_turn(note(" e"));
        assert_eq!(*done.borrow(), "(a) b(c)d e");
    }
}
