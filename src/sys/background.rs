//! Work for a thread of its own: calls of the user's logger, observer and callbacks, which may take
//! any time.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sys::sync::{Mutex, Sender, unbounded};
use crate::sys::system::OwnThread;

type Work = Box<dyn FnOnce() + Send>;

/// A thread that runs one piece of work after another, in order. No other thread waits for the
/// work.
pub(crate) struct BackgroundQueue {
    /// None once closed: without its sender the thread ends behind the queued work.
    open: Mutex<Option<(Sender<Work>, OwnThread)>>,
}

impl BackgroundQueue {
    pub(crate) fn start(name: &str) -> io::Result<BackgroundQueue> {
        let (sender, receiver) = unbounded::<Work>();
        let thread = OwnThread::spawn(name.to_owned(), move || {
            while let Ok(work) = receiver.recv() {
                // A panic of a user's code ends this piece of work alone.
                let _ = catch_unwind(AssertUnwindSafe(work));
            }
        })?;
        Ok(BackgroundQueue {
            open: Mutex::new(Some((sender, thread))),
        })
    }

    /// Queues the work, unless `max` pieces wait already or the queue is closed: whether it is
    /// queued. Does not block.
    pub(crate) fn run(&self, max: usize, work: impl FnOnce() + Send + 'static) -> bool {
        match &*self.open.lock() {
            Some((sender, _)) => sender.len() < max && sender.send(Box::new(work)).is_ok(),
            None => false,
        }
    }

    /// Ends the thread behind the queued work, and returns it for a join.
    pub(crate) fn close(&self) -> Option<OwnThread> {
        self.open.lock().take().map(|(_, thread)| thread)
    }
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
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
