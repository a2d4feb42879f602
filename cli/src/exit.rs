//! Exit statuses and errors of the command.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{AcquireError, ErrorKind, ReleaseError};
use serde_json::json;

use crate::screen;

/// An exit status, from sysexits.h where one fits. `quorlock run` exits with the status of its
/// command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    /// The answer to a question was no.
    pub(crate) const REFUSED: Exit = Exit(1);
    /// These servers are not fit for locks.
    pub(crate) const UNFIT: Exit = Exit(2);
    /// Invalid options.
    pub(crate) const USAGE: Exit = Exit(64);
    /// No majority of the servers is available.
    pub(crate) const NO_QUORUM: Exit = Exit(69);
    /// A fault of this machine, or a bug.
    pub(crate) const INTERNAL: Exit = Exit(70);
    /// The command succeeded, and no majority has its record.
    pub(crate) const NOT_RECORDED: Exit = Exit(73);
    /// The lock was held until the deadline.
    pub(crate) const HELD: Exit = Exit(75);
    /// A run at most once was broken off.
    pub(crate) const ABANDONED: Exit = Exit(76);
    /// A wrong password, or a missing permission.
    pub(crate) const NO_PERMISSION: Exit = Exit(77);
    /// Invalid configuration.
    pub(crate) const CONFIG: Exit = Exit(78);
    /// The lock was lost.
    pub(crate) const LOST: Exit = Exit(79);
    /// The command cannot be executed.
    pub(crate) const NOT_EXECUTABLE: Exit = Exit(126);
    /// The command was not found.
    pub(crate) const NOT_FOUND: Exit = Exit(127);

    /// The reader of stdout has closed the pipe: as for a program that SIGPIPE ends.
    pub(crate) const PIPE: Exit = Exit(141);

    /// A signal of this number ended the wait.
    pub(crate) fn signal(number: u8) -> Exit {
        Exit(number.saturating_add(128))
    }

    pub(crate) fn is_signal(self) -> bool {
        128 <= self.0
    }

    pub(crate) fn number(self) -> u8 {
        self.0
    }

    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(self.0)
    }

    /// The status of a command that is done, or has this status.
    pub(crate) fn unless(self, is_done: bool) -> ExitCode {
        if is_done {
            ExitCode::SUCCESS
        } else {
            self.code()
        }
    }
}

/// An error of the command.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) exit: Exit,
    pub(crate) reason: String,
}

impl Failed {
    pub(crate) fn new(exit: Exit, reason: impl fmt::Display) -> Failed {
        Failed {
            exit,
            reason: reason.to_string(),
        }
    }

    /// Writes a line or an object to stderr.
    pub(crate) fn tell(&self, json: bool) {
        let line = if json {
            let status = self.exit.number();
            json!({ "quorlock": 1, "error": self.reason, "status": status }).to_string()
        } else {
            screen::message(&self.reason)
        };
        // Without a reader there is still the status.
        let written = screen::aside(move || writeln!(io::stderr(), "{line}"));
        let _ = written.recv_timeout(screen::PATIENCE);
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl From<io::Error> for Failed {
    fn from(err: io::Error) -> Failed {
        Failed::new(Exit::INTERNAL, err)
    }
}

impl From<AcquireError> for Failed {
    fn from(err: AcquireError) -> Failed {
        let forbidden =
            |it: &NodeAnswer| matches!(it, NodeAnswer::Failed(NodeFailure::Access { .. }));
        let exit = match &err {
            AcquireError::Held { .. } => Exit::HELD,
            AcquireError::NoQuorum { nodes, .. }
                if nodes.iter().any(|it| forbidden(&it.answer)) =>
            {
                Exit::NO_PERMISSION
            }
            AcquireError::NoQuorum { .. } if err.kind() == ErrorKind::Fix => Exit::CONFIG,
            AcquireError::NoQuorum { .. }
            | AcquireError::Busy { .. }
            | AcquireError::TooLate { .. } => Exit::NO_QUORUM,
            AcquireError::KeyInUse { .. } => Exit::CONFIG,
            AcquireError::ShutDown | AcquireError::Forked => Exit::INTERNAL,
            _ => Exit::USAGE,
        };
        Failed::new(exit, err)
    }
}

impl From<ReleaseError> for Failed {
    fn from(err: ReleaseError) -> Failed {
        let exit = match err {
            ReleaseError::Lost(_) => Exit::LOST,
            _ => Exit::NO_QUORUM,
        };
        Failed::new(exit, err)
    }
}
