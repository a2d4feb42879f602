//! Commands that wait to be put on a node's connection, by whichever thread does that next.

use std::sync::atomic::Ordering;

use crate::engine::nodes::job::Job;
use crate::sys::sync::{AtomicUsize, Mutex};

/// See the module. Only emptied with the connection locked, so that commands are put on it in the order of this queue.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// How many they are, for everybody to read without a lock.
    len: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    jobs: Vec<Job>,
    /// Nobody takes them any more.
    is_closed: bool,
}

impl Queue {
    /// Puts a command behind all others. After the end of the worker it is dropped: its sender hears of it by its own
    /// time-out.
    pub(crate) fn push(&self, job: Job) {
        let mut waiting = self.waiting.lock();
        if !waiting.is_closed {
            waiting.jobs.push(job);
            self.len.store(waiting.jobs.len(), Ordering::SeqCst);
        }
    }

    /// Takes all commands, in order, in exchange for an empty vector, whose memory is used on.
    pub(crate) fn take(&self, into: &mut Vec<Job>) {
        let mut waiting = self.waiting.lock();
        std::mem::swap(&mut waiting.jobs, into);
        self.len.store(0, Ordering::SeqCst);
    }

    /// Takes no more commands; what is still in it is dropped.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting.lock();
        let left = std::mem::take(&mut waiting.jobs);
        waiting.is_closed = true;
        self.len.store(0, Ordering::SeqCst);
        // Whoever wants an answer may be dropped with it.
        drop(waiting);
        drop(left);
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::SeqCst)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
