//! What is said on stderr while something is held.

use std::io::{self, Write};

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// On stderr, unless that would have to wait: nothing that a reader of it does, or does not, is to keep a command waiting
/// that has to be ended, or a guardian that has to be told of an extension.
pub(crate) fn say(text: &str) {
    let stderr = io::stderr();
    let at_once = Timespec::default();
    if poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&at_once)).is_ok_and(|it| it == 1) {
        undisturbed(|| drop(writeln!(io::stderr(), "quorlock: {text}")));
    }
}

/// For what may use the terminal while it is not ours: without this the system could stop us, and nobody would extend the
/// lock.
pub(crate) fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTTOU);
    // Fails for a set that makes no sense, and this one does.
    let _ = signals.thread_block();
    let done = work();
    let _ = signals.thread_unblock();
    done
}
