//! Users' functions, called when a lock is lost: one after another, on one thread.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::Lost;
use crate::sys;
use crate::sys::logging::error;
use crate::sys::sync::{Mutex, afterwards, is_anything_locked};

/// What a user wants to have called.
pub(crate) type Callback = Box<dyn FnOnce(Lost) + Send>;

/// The callbacks of one manager that are due. They may block, and may drop guards and the manager: so they run on a
/// thread of their own, which has nothing locked. There is one however many locks are lost at once, it is started when
/// there is something to call, and it ends when nothing is left. No thread waits for it: at a shutdown, too, it calls what
/// is due, and it keeps nothing of the manager.
#[derive(Default)]
pub(crate) struct Callbacks {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    due: VecDeque<(Callback, Lost)>,
    /// The thread is there.
    runs: bool,
}

impl Callbacks {
    /// Calls them all, in this order, behind those of earlier calls. Does not wait.
    pub(crate) fn call(self: &Arc<Self>, callbacks: Vec<Callback>, lost: Lost) {
        if callbacks.is_empty() {
            return;
        }
        let starts = {
            let mut queue = self.queue.lock();
            queue.due.extend(callbacks.into_iter().map(|it| (it, lost)));
            !std::mem::replace(&mut queue.runs, true)
        };
        if starts {
            let this = Arc::clone(self);
            run_aside(move || this.run());
        }
    }

    fn run(&self) {
        loop {
            let next = {
                let mut queue = self.queue.lock();
                let next = queue.due.pop_front();
                // RACE: with the queue locked. A thread that puts something there after this starts another one.
                queue.runs = next.is_some();
                next
            };
            let Some((callback, lost)) = next else { return };
            call(callback, lost);
        }
    }
}

/// Calls one callback beside all others: for a forked child, in which nothing that the manager has may be locked.
pub(crate) fn call_aside(callback: Callback, lost: Lost) {
    run_aside(move || call(callback, lost));
}

fn run_aside(work: impl FnOnce() + Send + 'static) {
    if let Err(work) = sys::run_aside("quorlock-on-lost", work) {
        // The system gives no thread.
        afterwards(work);
    }
}

fn call(callback: Callback, lost: Lost) {
    debug_assert!(!is_anything_locked(), "a callback with something locked");
    if catch_unwind(AssertUnwindSafe(|| callback(lost))).is_err() {
        error!("an on_lost callback panicked");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn callbacks_run_one_after_another_on_one_thread_and_a_panic_ends_none_of_the_others() {
        let callbacks = Arc::new(Callbacks::default());
        let (said, hear) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let first: Callback = Box::new(move |_| wait.recv_timeout(PATIENCE).unwrap());
        callbacks.call(vec![first], Lost::Gone);
        for number in 0..1_000 {
            let said = said.clone();
            let callback: Callback = Box::new(move |lost| {
                said.send((number, lost, std::thread::current().id())).unwrap();
                assert!(number % 2 == 0, "a callback that panics");
            });
            callbacks.call(vec![callback], Lost::Expired);
        }
        assert!(hear.try_recv().is_err(), "beside the first, which is not over");

        go_on.send(()).unwrap();

        let heard: Vec<_> = (0..1_000).map(|_| hear.recv_timeout(PATIENCE).unwrap()).collect();
        assert!(heard.iter().enumerate().all(|(i, it)| *it == (i, Lost::Expired, heard[0].2)));
    }
}
