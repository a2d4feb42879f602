//! Mutexes, condition variables, atomics and channels.

pub(crate) use crate::sys::system::{
    AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Receiver, Sender, fence, unbounded,
};
