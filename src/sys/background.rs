//! Work for a thread of its own: calls of the user's logger, observer and callbacks, which may take any time.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::sys::sync::{Condvar, Mutex};
use crate::sys::system::OwnThread;

type Work = Box<dyn FnOnce() + Send>;

/// A thread that runs one piece of work after another, and the work that waits for it. No other thread waits for the work.
pub(crate) struct BackgroundQueue {
    shared: Arc<(Mutex<Queued>, Condvar)>,
    thread: Mutex<Option<OwnThread>>,
}

#[derive(Default)]
struct Queued {
    work: VecDeque<Work>,
    /// The thread ends when no work is left.
    is_closed: bool,
}

impl BackgroundQueue {
    pub(crate) fn start(name: &str) -> io::Result<BackgroundQueue> {
        let shared = Arc::<(Mutex<Queued>, Condvar)>::default();
        let own = Arc::clone(&shared);
        let thread = OwnThread::spawn(name.to_owned(), move || {
            while let Some(work) = next(&own) {
                // A panic of a user's code ends this piece of work alone.
                let _ = catch_unwind(AssertUnwindSafe(work));
            }
        })?;
        Ok(BackgroundQueue {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Queues the work, unless `max` pieces wait already or the queue is closed: whether it is queued. Does not block.
    pub(crate) fn run(&self, max: usize, work: impl FnOnce() + Send + 'static) -> bool {
        let mut queued = self.shared.0.lock();
        let has_room = !queued.is_closed && queued.work.len() < max;
        if has_room {
            queued.work.push_back(Box::new(work));
            self.shared.1.notify_one();
        }
        has_room
    }

    /// Ends the thread behind the queued work, and returns it for a join.
    pub(crate) fn close(&self) -> Option<OwnThread> {
        self.shared.0.lock().is_closed = true;
        self.shared.1.notify_one();
        self.thread.lock().take()
    }
}

fn next((queued, changed): &(Mutex<Queued>, Condvar)) -> Option<Work> {
    let mut queued = queued.lock();
    while queued.work.is_empty() && !queued.is_closed {
        changed.wait(&mut queued, None);
    }
    queued.work.pop_front()
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::time;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn h19_work_beyond_the_limit_is_refused_and_the_rest_runs_in_order() {
        let queue = BackgroundQueue::start("test").unwrap();
        let (go_on, wait) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        assert!(queue.run(1, move || {
            begun.send(()).unwrap();
            wait.recv_timeout(PATIENCE).unwrap();
            panic!("a panic of a user's code");
        }));
        begins.recv_timeout(PATIENCE).unwrap();
        let (sender, receiver) = mpsc::channel();
        let queued = [0, 1, 2, 3].map(|number| {
            let sender = sender.clone();
            queue.run(2, move || sender.send(number).unwrap())
        });
        go_on.send(()).unwrap();

        let thread = queue.close().unwrap();
        assert!(!queue.run(2, || ()), "it is closed");
        thread
            .join_until(time::deadline(PATIENCE))
            .unwrap()
            .unwrap();

        assert_eq!(queued, [true, true, false, false]);
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn queued_work_may_close_its_own_queue() {
        let queue = Arc::new(BackgroundQueue::start("test").unwrap());
        let (sender, receiver) = mpsc::channel();
        let own = Arc::clone(&queue);
        assert!(queue.run(1, move || {
            let thread = own.close().unwrap();
            let joined = thread.join_until(time::deadline(PATIENCE));
            sender.send(joined.is_some()).unwrap();
        }));
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(true));
    }
}
