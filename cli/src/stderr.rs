//! Messages on stderr while a lock is held.

use std::io::{self, Write};

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::screen;

/// Writes a message, unless stderr is not writable now: a slow reader must not delay the end of a
/// command or the guardian.
pub(crate) fn say(text: &str) {
    let stderr = io::stderr();
    let at_once = Timespec::default();
    if poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&at_once)).is_ok_and(|it| it == 1) {
        undisturbed(|| drop(writeln!(io::stderr(), "{}", screen::message(text))));
    }
}

/// For uses of a terminal while we are in its background: without this the system could stop us,
/// and the lock would expire.
pub(crate) fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTTOU);
    // Fails for invalid sets only.
    let _ = signals.thread_block();
    let done = work();
    let _ = signals.thread_unblock();
    done
}
