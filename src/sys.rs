//! The system: clocks, sockets, mutexes, threads and the logger. Nothing outside names what is behind them.
//!
//! `--cfg quorlock_shuttle` puts the stand-ins of the checker of schedules in place of the system. The switch is here and
//! nowhere else: `sys/os` and `sys/checked` have the same form.

pub(crate) mod ahead;
#[cfg(quorlock_shuttle)]
pub(crate) mod checked;
pub(crate) mod logging;
#[cfg(not(quorlock_shuttle))]
mod os;
pub(crate) mod sync;

#[cfg(quorlock_shuttle)]
use checked as system;
#[cfg(not(quorlock_shuttle))]
use os as system;

pub(crate) use system::{
    CAN_WAIT_FOR_SEVERAL, Events, OwnThread, Poll, Registry, Socket, ThreadId, Tick, Token, WakeFd, Waker, Watch,
    boot_clock, is_unwinding, run_aside, this_thread, tick, wait_readable, wall_clock,
};

#[cfg(feature = "testing")]
pub(crate) use system::thread_name;

/// What a wake-up of a poll is known by.
pub(crate) const WAKE: Token = Token(0);
/// What the socket of a poll is known by.
pub(crate) const SOCKET: Token = Token(1);
