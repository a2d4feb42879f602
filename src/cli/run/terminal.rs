//! Whose the terminal is. Who reads it without being in its foreground is stopped by the system.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use crate::run::group::Group;

/// The one that we were started from, if it is one.
#[derive(Debug)]
pub(crate) struct Terminal {
    terminal: Option<File>,
    given: bool,
}

impl Terminal {
    pub(crate) fn ours() -> Terminal {
        Terminal { terminal: OpenOptions::new().read(true).write(true).open("/dev/tty").ok(), given: false }
    }

    /// Gives it to a command that will use it by all appearances. Where stdout goes elsewhere it may be read by a pager,
    /// which needs the terminal: then the command gets it when it reads it.
    pub(crate) fn give_if_used(&mut self, group: Group) {
        if io::stdin().is_terminal() && io::stdout().is_terminal() {
            self.give(group);
        }
    }

    /// Gives it to the group if it is ours to give; whether the group has it.
    pub(crate) fn give(&mut self, group: Group) -> bool {
        let Some(terminal) = &self.terminal else { return false };
        match tcgetpgrp(terminal) {
            Ok(foreground) if foreground == group.0 => return true,
            Ok(foreground) if foreground == getpgrp() => {}
            _ => return false,
        }
        let given = undisturbed(|| tcsetpgrp(terminal, group.0).is_ok());
        self.given |= given;
        given
    }

    /// Takes it back from a group that has ended.
    pub(crate) fn take_back(&mut self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|_| self.given) {
            let _ = undisturbed(|| tcsetpgrp(terminal, getpgrp()));
            self.given = false;
        }
    }
}

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
fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTTOU);
    // Fails for a set that makes no sense, and this one does.
    let _ = signals.thread_block();
    let done = work();
    let _ = signals.thread_unblock();
    done
}
