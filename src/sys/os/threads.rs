//! Starting and joining the crate's threads: the only place that does either.

use std::io;
use std::sync::Arc;
pub(crate) use std::thread::ThreadId;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use super::clock::{Tick, tick};

/// A thread that is joined within a bound.
#[derive(Debug)]
pub(crate) struct OwnThread {
    name: String,
    handle: JoinHandle<()>,
    /// Disconnected when the thread ends, in whatever way: a join has no time limit of its own.
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

    /// Waits for the thread to end, until `deadline`: how it ended, or `None` if it runs on.
    pub(crate) fn join_until(self, deadline: Tick) -> Option<thread::Result<()>> {
        if self.handle.thread().id() == thread::current().id() {
            // The last handle to the manager can be dropped by a thread of its own, and a thread that waits for its
            // own end waits for ever.
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

/// The calling thread, to be told from others.
pub(crate) fn this_thread() -> ThreadId {
    thread::current().id()
}

/// Whether a panic is going through this thread.
pub(crate) fn is_unwinding() -> bool {
    thread::panicking()
}

/// Starts a short-lived thread that nobody waits for. Gives `work` back if the system gives no thread.
pub(crate) fn run_aside<W: FnOnce() + Send + 'static>(name: &str, work: W) -> Result<(), W> {
    // Shared, so that the work is still ours if the thread cannot be started.
    let work = Arc::new(Mutex::new(Some(work)));
    let theirs = Arc::clone(&work);
    let run = move || {
        let work = theirs.lock().take();
        if let Some(work) = work {
            work();
        }
    };
    match thread::Builder::new().name(name.to_owned()).spawn(run) {
        Ok(_) => Ok(()),
        Err(_) => work.lock().take().map_or(Ok(()), Err),
    }
}
