//! An unbounded channel, in the form of `crossbeam-channel`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use super::clock::{Sleeper, point};

pub(crate) struct Sender<T>(Arc<Mutex<Channel<T>>>);
pub(crate) struct Receiver<T>(Arc<Mutex<Channel<T>>>);

struct Channel<T> {
    queue: VecDeque<T>,
    is_closed: bool,
    /// The receiving thread.
    sleeper: Option<Arc<Sleeper>>,
}

/// All messages were received, and the sender is gone.
#[derive(Debug)]
pub(crate) struct Disconnected;

pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Mutex::new(Channel {
        queue: VecDeque::new(),
        is_closed: false,
        sleeper: None,
    }));
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

impl<T> Sender<T> {
    /// The crate's senders do not outlive their receivers.
    pub(crate) fn send(&self, it: T) -> Result<(), Infallible> {
        point();
        self.change(|channel| channel.queue.push_back(it));
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().queue.len()
    }

    fn change(&self, change: impl FnOnce(&mut Channel<T>)) {
        let sleeper = {
            let mut channel = self.0.lock().unwrap();
            change(&mut channel);
            channel.sleeper.take()
        };
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.change(|channel| channel.is_closed = true);
    }
}

impl<T> Receiver<T> {
    pub(crate) fn recv(&self) -> Result<T, Disconnected> {
        loop {
            point();
            let sleeper = {
                let mut channel = self.0.lock().unwrap();
                if let Some(it) = channel.queue.pop_front() {
                    return Ok(it);
                }
                if channel.is_closed {
                    return Err(Disconnected);
                }
                let sleeper = Sleeper::new();
                channel.sleeper = Some(Arc::clone(&sleeper));
                sleeper
            };
            sleeper.sleep(None);
        }
    }

    pub(crate) fn try_iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| {
            point();
            self.0.lock().unwrap().queue.pop_front()
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        point();
        self.0.lock().unwrap().queue.is_empty()
    }
}
