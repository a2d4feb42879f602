//! The terminal's foreground group. The system stops background processes that read the terminal.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};

use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use crate::run::group::Group;
use crate::stderr::undisturbed;

/// The controlling terminal, if any.
#[derive(Debug)]
pub(crate) struct Terminal {
    terminal: Option<File>,
    given: bool,
}

impl Terminal {
    pub(crate) fn ours() -> Terminal {
        Terminal {
            terminal: OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/tty")
                .ok(),
            given: false,
        }
    }

    /// Gives the terminal to a command with stdin and stdout there. Otherwise a pager may read
    /// stdout and need the terminal: then the command gets it at its first read.
    pub(crate) fn give_if_used(&mut self, group: Group) {
        if io::stdin().is_terminal() && io::stdout().is_terminal() {
            self.give(group);
        }
    }

    /// Gives it to the group if we are in the foreground. Returns whether the group has it.
    pub(crate) fn give(&mut self, group: Group) -> bool {
        let Some(terminal) = &self.terminal else {
            return false;
        };
        match tcgetpgrp(terminal) {
            Ok(foreground) if foreground == group.0 => return true,
            Ok(foreground) if foreground == getpgrp() => {}
            _ => return false,
        }
        let given = undisturbed(|| tcsetpgrp(terminal, group.0).is_ok());
        self.given |= given;
        given
    }

    /// Takes it back after the end of the group.
    pub(crate) fn take_back(&mut self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|_| self.given) {
            let _ = undisturbed(|| tcsetpgrp(terminal, getpgrp()));
            self.given = false;
        }
    }
}
