//! How the command ends: one table of statuses, here and in the help.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{AcquireError, BuildError};

/// What the status says: those of sysexits.h, where they fit. A command that ran under a lock has its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Exit(u8);

impl Exit {
    /// The user was asked, and said no.
    pub(crate) const REFUSED: Exit = Exit(1);
    /// These servers are not fit for locks.
    pub(crate) const UNFIT: Exit = Exit(2);
    /// The options make no sense together.
    pub(crate) const USAGE: Exit = Exit(64);
    /// No majority of the nodes can be asked.
    pub(crate) const NO_QUORUM: Exit = Exit(69);
    /// A bug of ours, or the machine's fault.
    pub(crate) const INTERNAL: Exit = Exit(70);
    /// The lock was not free in time.
    pub(crate) const HELD: Exit = Exit(75);
    /// A password is wrong, or an access list forbids it.
    pub(crate) const NO_PERMISSION: Exit = Exit(77);
    /// The configuration cannot be used.
    pub(crate) const CONFIG: Exit = Exit(78);
    /// The lock was lost while it was held.
    pub(crate) const LOST: Exit = Exit(79);
    /// The command cannot be executed.
    pub(crate) const NOT_EXECUTABLE: Exit = Exit(126);
    /// There is no such command.
    pub(crate) const NOT_FOUND: Exit = Exit(127);

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
}

/// Why the command cannot do what it was asked to do.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) exit: Exit,
    reason: String,
}

impl Failed {
    pub(crate) fn new(exit: Exit, reason: impl fmt::Display) -> Failed {
        Failed { exit, reason: reason.to_string() }
    }

    /// With something that comes on top of it.
    pub(crate) fn and(self, more: impl fmt::Display) -> Failed {
        Failed { reason: format!("{}; {more}", self.reason), ..self }
    }

    /// Says so on stderr: a line, or an object.
    pub(crate) fn tell(&self, json: bool) {
        let line = if json {
            let (reason, status) = (&self.reason, self.exit.number());
            serde_json::json!({ "quorlock": 1, "error": reason, "status": status }).to_string()
        } else {
            format!("quorlock: {}", self.reason)
        };
        // Where nobody reads it, the status still says it.
        let _ = writeln!(io::stderr(), "{line}");
    }
}

impl From<BuildError> for Failed {
    fn from(err: BuildError) -> Failed {
        Failed::new(Exit::CONFIG, err)
    }
}

impl From<io::Error> for Failed {
    fn from(err: io::Error) -> Failed {
        Failed::new(Exit::INTERNAL, err)
    }
}

impl From<AcquireError> for Failed {
    fn from(err: AcquireError) -> Failed {
        let forbidden = |it: &NodeAnswer| {
            let NodeAnswer::Failed(failure) = it else { return false };
            use NodeFailure::{NoPassword, NoPermission, WrongPassword};
            matches!(failure, NoPermission { .. } | WrongPassword | NoPassword)
        };
        let exit = match &err {
            AcquireError::Held { .. } => Exit::HELD,
            AcquireError::NoQuorum { nodes, .. } if nodes.iter().any(|it| forbidden(&it.answer)) => Exit::NO_PERMISSION,
            AcquireError::NoQuorum { .. } | AcquireError::Busy { .. } | AcquireError::TooLate { .. } => Exit::NO_QUORUM,
            AcquireError::KeyInUse { .. } => Exit::CONFIG,
            AcquireError::ShutDown | AcquireError::Forked => Exit::INTERNAL,
            _ => Exit::USAGE,
        };
        Failed::new(exit, err)
    }
}
