//! An unbounded channel, in the form of `crossbeam-channel`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use super::clock::point;

pub(crate) struct Sender<T>(Arc<Mutex<VecDeque<T>>>);
pub(crate) struct Receiver<T>(Arc<Mutex<VecDeque<T>>>);

pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let queue = Arc::default();
    (Sender(Arc::clone(&queue)), Receiver(queue))
}

impl<T> Sender<T> {
    /// The crate's senders do not outlive their receivers.
    pub(crate) fn send(&self, it: T) -> Result<(), Infallible> {
        point();
        self.0.lock().unwrap().push_back(it);
        Ok(())
    }
}

impl<T> Receiver<T> {
    pub(crate) fn try_iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| {
            point();
            self.0.lock().unwrap().pop_front()
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        point();
        self.0.lock().unwrap().is_empty()
    }
}
