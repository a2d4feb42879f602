//! What threads meet at: mutexes, atomics, the workers' queue and sleep. One place, so that the checker can put others
//! there: see `checks`.

#[cfg(not(quorlock_shuttle))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

#[cfg(not(quorlock_shuttle))]
pub(crate) use {
    crossbeam_channel::{Receiver, Sender, unbounded},
    mio::{Events, Poll, Registry, Token, Waker},
    parking_lot::{Condvar, Mutex, MutexGuard},
};

#[cfg(quorlock_shuttle)]
pub(crate) use crate::checker::{
    AtomicBool, AtomicU64, AtomicUsize, Condvar, Events, Mutex, MutexGuard, Poll, Receiver, Registry, Sender, Token,
    Waker, fence, unbounded,
};
