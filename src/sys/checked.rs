//! Stand-ins for what threads are made of, for runs under the checker: see
//! `src/tests/schedules.rs`.
//!
//! With `--cfg quorlock_shuttle` the unit tests are built on these: mutexes, channels, sockets and
//! clocks of the `shuttle` checker, which runs one thread at a time and decides at each step which.
//! A schedule in which something goes wrong is so found by trying many, and can be run again.
//!
//! Memory is sequentially consistent here: what weaker orderings of atomics allow is not looked
//! for.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stderr,
    reason = "test code: a panic is a finding"
)]

mod channel;
mod clock;
mod explore;
mod locks;
mod poll;
mod socket;
mod threads;
mod trace;

pub(crate) use channel::{Receiver, Sender, unbounded};
pub(crate) use clock::{Sleeper, Tick, boot_clock, now, point, suspend, tick, wall_clock};
pub(crate) use explore::{check, set_haste};
pub(crate) use locks::{Condvar, Mutex, MutexGuard};
pub(crate) use poll::{Events, Poll, Registry, Token, Waker};
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, fence};
pub(crate) use socket::{Peer, Socket, accept};
pub(crate) use threads::{OwnThread, ThreadId, this_thread, yield_now};
pub(crate) use trace::trace;

/// Fills it from the generator of the run, so that a run can be repeated.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    fastrand::fill(bytes);
    Ok(())
}
