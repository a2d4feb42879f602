//! Listeners to the loss of one lock: channels and callbacks.

use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::Lost;
use crate::observer::Journal;
use crate::sys::background::BackgroundQueue;
use crate::sys::logging::error;
use crate::sys::sync::Mutex;

/// Channels and callbacks of one hold, dropped at its end: without a loss the channels are closed,
/// and the callbacks are dropped uncalled. Values of the user live no longer.
#[derive(Default)]
pub(crate) struct Listeners {
    /// Sending ends, each with the life of its receiving end.
    channels: Vec<(Weak<()>, Sender<Lost>)>,
    pub(crate) callbacks: Vec<Callback>,
}

impl Listeners {
    /// A channel that carries the loss, or is closed without one.
    pub(crate) fn listen(&mut self) -> LostReceiver {
        let (sender, receiver) = bounded(1);
        let life = Arc::default();
        self.channels.retain(|(life, _)| life.strong_count() != 0);
        self.channels.push((Arc::downgrade(&life), sender));
        LostReceiver {
            _life: life,
            receiver,
        }
    }

    /// Notifies all listeners.
    pub(crate) fn notify(self, lost: &Lost, callbacks: &Callbacks) {
        for (_, sender) in self.channels {
            // A channel of one place, used once.
            let _ = sender.try_send(lost.clone());
        }
        callbacks.call(self.callbacks, lost);
    }
}

/// A channel on which the loss of a lock is announced, see [`Hold::lost`](crate::Hold::lost).
///
/// Use it as the [`Receiver`](crossbeam_channel::Receiver) to which it dereferences: by its
/// methods, and in `crossbeam_channel::select!`. You may get a new one in each turn of a loop: each
/// new one takes the place of the dropped ones. A clone of the inner `Receiver` may be closed
/// without a message once this channel is dropped.
pub struct LostReceiver {
    _life: Arc<()>,
    receiver: Receiver<Lost>,
}

impl LostReceiver {
    /// A channel with its message.
    pub(crate) fn of(lost: Lost) -> LostReceiver {
        let (sender, receiver) = bounded(1);
        // A fresh channel of one place has room.
        let _ = sender.try_send(lost);
        LostReceiver {
            _life: Arc::default(),
            receiver,
        }
    }
}

impl Deref for LostReceiver {
    type Target = Receiver<Lost>;

    fn deref(&self) -> &Receiver<Lost> {
        &self.receiver
    }
}

impl fmt::Debug for LostReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("LostReceiver { .. }")
    }
}

/// A callback of the user.
pub(crate) type Callback = Box<dyn FnOnce(Lost) + Send>;

/// Name of the thread for callbacks.
const THREAD: &str = "quorlock-on-lost";

/// The due callbacks of one manager. They may block, and may drop guards and the manager: they run
/// on a thread of their own, started with the first one, which waits for no logger. No thread waits
/// for it: callbacks that are due at a shutdown run as well.
pub(crate) struct Callbacks {
    queue: Mutex<Option<BackgroundQueue>>,
    journal: Arc<Journal>,
}

impl Callbacks {
    pub(crate) fn new(journal: Arc<Journal>) -> Callbacks {
        Callbacks {
            queue: Mutex::default(),
            journal,
        }
    }

    /// Runs the callbacks in this order, behind those of earlier calls. Does not block.
    pub(crate) fn call(&self, callbacks: Vec<Callback>, lost: &Lost) {
        for callback in callbacks {
            let (journal, lost) = (Arc::clone(&self.journal), lost.clone());
            let call = move || {
                if catch_unwind(AssertUnwindSafe(|| callback(lost))).is_err() {
                    error!(journal, "an on_lost callback panicked");
                }
            };
            let mut queue = self.queue.lock();
            if queue.is_none() {
                *queue = BackgroundQueue::start(THREAD).ok();
            }
            match &*queue {
                Some(queue) => drop(queue.run(usize::MAX, call)),
                // The system has no thread for them.
                None => self.journal.run(call),
            }
        }
    }

    /// Ends the thread behind the due callbacks, without waiting.
    pub(crate) fn close(&self) {
        if let Some(queue) = &*self.queue.lock() {
            queue.close();
        }
    }
}

/// Runs the callback on a thread of its own, without a manager. On this one if the system gives no
/// thread.
pub(crate) fn call_alone(callback: Callback, lost: Lost) {
    match BackgroundQueue::start(THREAD) {
        Ok(queue) => {
            queue.run(1, move || callback(lost));
            queue.close();
        }
        // A panic of the callback must not end the caller. The panic hook has reported it.
        Err(_) => drop(catch_unwind(AssertUnwindSafe(|| callback(lost)))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::error::LostReason;
    use crate::ids::LockName;

    fn callbacks() -> Callbacks {
        Callbacks::new(Journal::start(None).unwrap())
    }

    fn lost(reason: LostReason) -> Lost {
        Lost {
            name: LockName::new(b"report"),
            reason,
        }
    }

    #[test]
    fn dropped_receivers_are_removed_and_the_others_notified() {
        let mut listeners = Listeners::default();
        let kept = [(); 3].map(|()| listeners.listen());
        for _ in 0..100_000 {
            assert!(listeners.listen().try_recv().is_err());
        }
        assert!(listeners.channels.len() <= 4);

        listeners.notify(&lost(LostReason::Expired), &callbacks());

        for receiver in kept {
            assert_eq!(receiver.recv(), Ok(lost(LostReason::Expired)));
            assert!(receiver.recv().is_err(), "closed behind its one message");
        }
    }

    #[test]
    fn receivers_of_a_lock_that_was_not_lost_are_closed_without_a_message() {
        let mut listeners = Listeners::default();
        let receivers = [(); 2].map(|()| listeners.listen());

        drop(listeners);

        assert!(receivers.iter().all(|it| it.recv().is_err()));
    }

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn callbacks_run_in_order_on_one_thread_and_survive_a_panic() {
        let callbacks = callbacks();
        let (said, hear) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let first: Callback = Box::new(move |_| wait.recv_timeout(PATIENCE).unwrap());
        callbacks.call(vec![first], &lost(LostReason::Gone));
        for number in 0..1_000 {
            let said = said.clone();
            let callback: Callback = Box::new(move |lost| {
                said.send((number, lost.reason, std::thread::current().id()))
                    .unwrap();
                assert!(number % 2 == 0, "a callback that panics");
            });
            callbacks.call(vec![callback], &lost(LostReason::Expired));
        }
        assert!(
            hear.try_recv().is_err(),
            "beside the first, which is not over"
        );

        go_on.send(()).unwrap();

        let heard: Vec<_> = (0..1_000)
            .map(|_| hear.recv_timeout(PATIENCE).unwrap())
            .collect();
        assert!(
            heard
                .iter()
                .enumerate()
                .all(|(i, it)| *it == (i, LostReason::Expired, heard[0].2))
        );
    }
}
