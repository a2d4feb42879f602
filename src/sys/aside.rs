//! What belongs to users and is due on a thread of ours: it is done aside, on a thread of its own.
//!
//! A logger or an observer may take any time. So no thread that writes, reads, renews or schedules calls one: it leaves what it
//! has to tell, and goes on. Threads of users tell by themselves: see [`afterwards`].

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::sys::sync::{Condvar, Mutex, afterwards};
use crate::sys::system::{
    LEAVE, Leave, OwnThread, SendWork, ThreadId, Tick, run_aside, this_thread, tick,
};

/// Does one thing after another, on a thread that is started when there is something to do. Keeps nothing of a manager, and is
/// shared by its threads.
pub(crate) struct BackgroundQueue {
    name: &'static str,
    /// How much may wait. What comes when that is full is not done.
    most: usize,
    /// For how long the thread waits for more before it ends.
    linger: Duration,
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    due: VecDeque<SendWork>,
    /// The thread is there.
    runs: bool,
    /// It waits for more.
    waits: bool,
    /// It ends when nothing is left.
    ends: bool,
    thread: Option<ThreadId>,
}

impl BackgroundQueue {
    pub(crate) fn new(name: &'static str, most: usize, linger: Duration) -> BackgroundQueue {
        BackgroundQueue {
            name,
            most,
            linger,
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    /// Does it, behind all others. Does not wait. Gives back what is not done: this, if too much waits already; all that waits, if
    /// the system gives no thread.
    pub(crate) fn run(self: &Arc<Self>, work: SendWork) -> Result<(), Vec<SendWork>> {
        let starts = {
            let mut state = self.state.lock();
            if self.most <= state.due.len() {
                return Err(vec![work]);
            }
            state.due.push_back(work);
            if std::mem::take(&mut state.waits) {
                self.changed.notify_all();
            }
            !std::mem::replace(&mut state.runs, true)
        };
        let this = Arc::clone(self);
        if !starts || run_aside(self.name, move || this.work()).is_ok() {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.runs = false;
        Err(state.due.drain(..).collect())
    }

    /// Waits until everything is done, until `deadline`; the thread ends then. It does not wait for itself.
    pub(crate) fn end(&self, deadline: Tick) {
        let mut state = self.state.lock();
        state.ends = true;
        self.changed.notify_all();
        // What a user has written may be what ends the manager.
        let is_own = state.thread == Some(this_thread().id());
        while state.runs && !is_own && self.changed.wait(&mut state, Some(deadline)) {}
    }

    fn work(&self) {
        self.state.lock().thread = Some(this_thread().id());
        while let Some(work) = self.next() {
            // Whoever has given it looks after panics that mean something.
            let _ = catch_unwind(AssertUnwindSafe(work));
        }
    }

    fn next(&self) -> Option<SendWork> {
        let mut state = self.state.lock();
        while state.due.is_empty() && !state.ends && !self.linger.is_zero() {
            state.waits = true;
            // An end that no clock can show is none.
            if !self
                .changed
                .wait(&mut state, tick().checked_add(self.linger))
            {
                break;
            }
        }
        state.waits = false;
        let next = state.due.pop_front();
        // RACE: with the state locked. Who puts something there after this starts another thread.
        state.runs = next.is_some();
        if next.is_none() {
            self.changed.notify_all();
        }
        next
    }
}

/// Does what is a user's: on the thread for it, if this is one of ours; otherwise here, as soon as nothing is locked.
pub(crate) fn tell(work: impl FnOnce() + Send + 'static) {
    match own() {
        Some(leave) => leave(Box::new(work)),
        None => afterwards(work),
    }
}

/// Whether this thread is one of ours, which calls nothing of a user's.
pub(crate) fn is_ours() -> bool {
    own().is_some()
}

fn own() -> Option<Leave> {
    LEAVE.try_with(|it| it.borrow().clone()).ok().flatten()
}

/// Until the result is dropped, this thread leaves there what it has to tell, and so do threads of ours that it starts.
pub(crate) fn leave_to(leave: Option<Leave>) -> LeaveGuard {
    LeaveGuard(LEAVE.try_with(|it| it.replace(leave)).ok().flatten())
}

/// See [`leave_to`].
pub(crate) struct LeaveGuard(Option<Leave>);

impl Drop for LeaveGuard {
    fn drop(&mut self) {
        let before = self.0.take();
        let _ = LEAVE.try_with(|it| it.replace(before));
    }
}

/// Starts a thread of ours, which leaves what it has to tell where this one does.
pub(crate) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<OwnThread> {
    let leave = own();
    OwnThread::spawn(name, move || {
        let _left = leave_to(leave);
        work();
    })
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::time;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn h19_what_is_too_much_to_tell_is_left_out_and_counted() {
        let aside = Arc::new(BackgroundQueue::new("test", 2, PATIENCE));
        let (go_on, wait) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let first = move || {
            begun.send(()).unwrap();
            wait.recv_timeout(PATIENCE).unwrap();
        };
        assert!(aside.run(Box::new(first)).is_ok());
        begins.recv_timeout(PATIENCE).unwrap();
        let (said, heard) = mpsc::channel();
        let say = |number: usize| -> SendWork {
            let said = said.clone();
            Box::new(move || said.send(number).unwrap())
        };
        let left_out = (0..5)
            .filter_map(|it| aside.run(say(it)).err())
            .flatten()
            .count();

        go_on.send(()).unwrap();
        aside.end(time::deadline(PATIENCE));

        assert_eq!(
            (left_out, heard.try_iter().collect::<Vec<_>>()),
            (3, vec![0, 1])
        );
        assert!(!aside.state.lock().runs, "its thread is there");
    }

    #[test]
    fn what_ends_by_a_panic_ends_nothing_else_and_whoever_is_told_may_end_it() {
        let aside = Arc::new(BackgroundQueue::new("test", 2, Duration::ZERO));
        assert!(
            aside
                .run(Box::new(|| panic!("a panic of a user's")))
                .is_ok()
        );
        let ends = Arc::clone(&aside);
        assert!(
            aside
                .run(Box::new(move || ends.end(time::deadline(PATIENCE))))
                .is_ok()
        );

        aside.end(time::deadline(PATIENCE));

        assert!(!aside.state.lock().runs);
    }

    #[test]
    fn threads_of_ours_leave_what_they_tell_where_whoever_has_started_them_does() {
        let (said, heard) = mpsc::channel();
        let leave: Leave = Arc::new(move |_| said.send(this_thread().id()).unwrap());
        let started = {
            let _left = leave_to(Some(leave));
            spawn("test".to_owned(), || own().unwrap()(Box::new(|| ()))).unwrap()
        };
        assert!(own().is_none());
        started
            .join_until(time::deadline(PATIENCE))
            .unwrap()
            .unwrap();
        assert_ne!(heard.recv_timeout(PATIENCE).unwrap(), this_thread().id());
    }
}
