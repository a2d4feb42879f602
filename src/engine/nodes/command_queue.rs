//! Commands that wait to be put on a node's connection: a channel to whichever thread does that next.

use std::sync::atomic::Ordering;

use crate::engine::nodes::job::Job;
use crate::sys::sync::{AtomicBool, Receiver, Sender, unbounded};

/// See the module. Only emptied with the connection locked, so that commands are put on it in the order of this queue.
pub(crate) struct CommandQueue {
    sender: Sender<Job>,
    receiver: Receiver<Job>,
    /// Nobody takes them any more.
    is_closed: AtomicBool,
}

impl Default for CommandQueue {
    fn default() -> CommandQueue {
        let (sender, receiver) = unbounded();
        CommandQueue {
            sender,
            receiver,
            is_closed: AtomicBool::new(false),
        }
    }
}

impl CommandQueue {
    /// Puts a command behind all others. After the end of the worker it is dropped: its sender finds out by its own
    /// time-out.
    pub(crate) fn push(&self, job: Job) {
        if self.is_closed() {
            return;
        }
        // The receiver is ours, so it is there.
        let _ = self.sender.send(job);
        // RACE: it was closed since we looked, and emptied before we sent. Nobody would ever look again, and what waits for
        // the answer would keep all of the manager alive.
        if self.is_closed() {
            self.clear();
        }
    }

    /// Takes all commands, in order.
    pub(crate) fn take(&self) -> impl Iterator<Item = Job> {
        self.receiver.try_iter()
    }

    /// Takes no more commands; what is still in it is dropped.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.receiver.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    fn clear(&self) {
        self.take().for_each(drop);
    }
}
