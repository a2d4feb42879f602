//! The operating system.

mod socket;
mod threads;

pub(crate) use crossbeam_channel::{Receiver, Sender, unbounded};
pub(crate) use mio::{Events, Poll, Registry, Token, Waker};
pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, fence};

pub(crate) use socket::Socket;
pub(crate) use threads::{
    Condvar, OwnThread, ThreadId, Tick, boot_clock, this_thread, tick, wall_clock, yield_now,
};

/// Fills it from the system's generator.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    getrandom::fill(bytes)
}
