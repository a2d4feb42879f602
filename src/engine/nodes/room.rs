//! Where calls wait until no node is too far behind: see `Load::has_room`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::sys::sync::{AtomicUsize, Condvar, Mutex, fence};
use crate::time;

/// The longest wait before a round. A node that cannot keep up with callers that all wait for so long is left out.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// See the module. One for all nodes of a manager.
#[derive(Default)]
pub(crate) struct Room {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    answered: Condvar,
}

impl Room {
    /// Waits until there is room, [`WAIT_MAX`] at most.
    pub(super) fn wait(&self, has_room: impl Fn() -> bool) {
        let end = time::deadline(WAIT_MAX);
        let mut nobody = self.lock.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // RACE: who has taken an answer looks for calls that wait after it has published what is under way; we say that we
        // wait and then look at that. One of the two sees the other.
        fence(Ordering::SeqCst);
        while !has_room() && !self.answered.wait_until(&mut nobody, end).timed_out() {}
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Answers have come: whoever waits looks again. Call it with nothing locked that a look at all nodes locks.
    pub(super) fn note_answers(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            drop(self.lock.lock());
            self.answered.notify_all();
        }
    }
}
