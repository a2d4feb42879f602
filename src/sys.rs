//! The system: clocks, sockets, mutexes, threads and the logger. Nothing outside names what is
//! behind them.
//!
//! `--cfg quorlock_shuttle` puts the stand-ins of the checker of schedules in place of the system,
//! for this crate's unit tests. The switch is `sys/system.rs` and nothing else: `sys/os` and
//! `sys/checked` have the same form.

pub(crate) mod background;
#[cfg(all(quorlock_shuttle, test))]
pub(crate) mod checked;
pub(crate) mod logging;
#[cfg(not(all(quorlock_shuttle, test)))]
mod os;
pub(crate) mod sync;
mod system;

pub(crate) use system::{
    Events, OwnThread, Poll, Registry, Socket, ThreadId, Tick, Token, Waker, boot_clock,
    fill_random, this_thread, tick, wall_clock, yield_now,
};

/// Token of wake-ups of a poll.
pub(crate) const WAKE: Token = Token(0);
/// Token of the socket of a poll.
pub(crate) const SOCKET: Token = Token(1);
