//! An unbounded channel, in the form of `crossbeam-channel`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::clock::point;

pub(crate) struct Sender<T>(Arc<Mutex<Shared<T>>>);
pub(crate) struct Receiver<T>(Arc<Mutex<Shared<T>>>);

struct Shared<T> {
    queue: VecDeque<T>,
    open: bool,
}

pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(Shared { queue: VecDeque::new(), open: true }));
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    pub(crate) fn send(&self, it: T) -> Result<(), T> {
        point();
        let mut shared = self.0.lock().unwrap();
        if !shared.open {
            return Err(it);
        }
        shared.queue.push_back(it);
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        point();
        self.0.lock().unwrap().queue.is_empty()
    }
}

impl<T> Receiver<T> {
    pub(crate) fn try_recv(&self) -> Result<T, ()> {
        point();
        self.0.lock().unwrap().queue.pop_front().ok_or(())
    }

    pub(crate) fn try_iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.try_recv().ok())
    }

    pub(crate) fn is_empty(&self) -> bool {
        point();
        self.0.lock().unwrap().queue.is_empty()
    }
}

/// What is still in it is dropped, as the real one does.
impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let left = {
            let mut shared = self.0.lock().unwrap();
            shared.open = false;
            std::mem::take(&mut shared.queue)
        };
        drop(left);
    }
}
