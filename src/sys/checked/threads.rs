//! Threads, in the form of `sys/os/threads.rs`, as tasks of the checker.

use std::io;
use std::sync::Arc;

pub(crate) use shuttle::thread::{ThreadId, current as this_thread, yield_now};

use super::clock::Tick;
use super::locks::{Condvar, Mutex};

pub(crate) struct OwnThread {
    handle: shuttle::thread::JoinHandle<()>,
    ended: Arc<(Mutex<bool>, Condvar)>,
}

/// Says that the thread has ended, in whatever way.
struct End(Arc<(Mutex<bool>, Condvar)>);

impl Drop for End {
    fn drop(&mut self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

impl OwnThread {
    pub(crate) fn spawn(
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<OwnThread> {
        let ended: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let end = End(Arc::clone(&ended));
        let handle = shuttle::thread::Builder::new().name(name).spawn(move || {
            let _end = end;
            work();
        })?;
        Ok(OwnThread { handle, ended })
    }

    /// Waits for however long it takes.
    pub(crate) fn join(self) {
        self.handle.join().unwrap();
    }

    pub(crate) fn name(&self) -> &str {
        self.handle.thread().name().unwrap_or_default()
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.ended.0.lock()
    }

    pub(crate) fn join_until(self, deadline: Tick) -> Option<std::thread::Result<()>> {
        if self.handle.thread().id() == shuttle::thread::current().id() {
            return Some(Ok(()));
        }
        let mut ended = self.ended.0.lock();
        while !*ended {
            if !self.ended.1.wait(&mut ended, Some(deadline)) {
                return None;
            }
        }
        drop(ended);
        self.handle.join().unwrap();
        Some(Ok(()))
    }
}
