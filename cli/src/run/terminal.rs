//! Whose the terminal is. Who reads it without being in its foreground is stopped by the system.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};

use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use crate::run::group::Group;
use crate::stderr::undisturbed;

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
