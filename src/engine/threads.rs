//! Starting and joining the crate's threads: the only place that does either.

use std::io;
pub(crate) use std::thread::ThreadId;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::engine::logging::{error, warn};
use crate::engine::sync::{Mutex, afterwards};
use crate::time::{self, Tick};

/// A thread that is joined within a bound.
#[derive(Debug)]
pub(crate) struct OwnThread {
    name: String,
    handle: JoinHandle<()>,
    /// Disconnected when the thread ends, in whatever way: a join has no time limit of its own.
    ended: Receiver<()>,
}

impl OwnThread {
    pub(crate) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<OwnThread> {
        let (end, ended): (Sender<()>, _) = bounded(0);
        let handle = thread::Builder::new().name(name.clone()).spawn(move || {
            let _end = end;
            work();
        })?;
        Ok(OwnThread { name, handle, ended })
    }

    /// Waits for the thread to end, until `deadline`; then it is left behind, and the log says so.
    pub(crate) fn join_until(self, deadline: Tick) {
        if self.handle.thread().id() == thread::current().id() {
            // The last handle to the manager can be dropped by a thread of its own, and a thread that waits for its
            // own end waits for ever.
            return;
        }
        let left = deadline.saturating_duration_since(time::tick());
        if matches!(self.ended.recv_timeout(left), Err(crossbeam_channel::RecvTimeoutError::Timeout)) {
            warn!("{}: still busy at the end of the shutdown grace, left behind", self.name);
            return;
        }
        if self.handle.join().is_err() {
            error!("{}: ended by a panic", self.name);
        }
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

/// Starts a short-lived thread that nobody waits for. If the system gives no thread, `work` runs here, with nothing locked.
pub(crate) fn run_aside(name: &str, work: impl FnOnce() + Send + 'static) {
    // Boxed and shared, so that the work is still ours if the thread cannot be started.
    let work = std::sync::Arc::new(Mutex::new(Some(work)));
    let theirs = std::sync::Arc::clone(&work);
    let run = move || {
        let work = theirs.lock().take();
        if let Some(work) = work {
            work();
        }
    };
    if thread::Builder::new().name(name.to_owned()).spawn(run).is_err() {
        let work = work.lock().take();
        if let Some(work) = work {
            afterwards(work);
        }
    }
}
