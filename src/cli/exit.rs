//! How the command ends: one table of statuses, here and in the help.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use quorlock::{AcquireError, BuildError, NodeAnswer, NodeFailure};

/// What the status says. A command that ran under a lock has its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Exit {
    /// Somebody was asked, and said no.
    Refused,
    /// The options make no sense together.
    Usage,
    /// No majority of the nodes can be asked.
    NoQuorum,
    /// A bug of ours, or the machine's fault.
    Internal,
    /// The lock is not to be had in time.
    Held,
    /// The lock was lost while it was held.
    Lost,
    /// A password is wrong, or an access list forbids it.
    NoPermission,
    /// The configuration cannot be used.
    Config,
    /// The command cannot be executed.
    NotExecutable,
    /// There is no such command.
    NotFound,
    /// A signal, of this number, ended the wait.
    Signal(u8),
}

impl Exit {
    /// The status: those of sysexits.h, where they fit.
    pub(crate) fn number(self) -> u8 {
        match self {
            Exit::Refused => 1,
            Exit::Usage => 64,
            Exit::NoQuorum => 69,
            Exit::Internal => 70,
            Exit::Held => 75,
            Exit::NoPermission => 77,
            Exit::Config => 78,
            Exit::Lost => 79,
            Exit::NotExecutable => 126,
            Exit::NotFound => 127,
            Exit::Signal(number) => number.saturating_add(128),
        }
    }

    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(self.number())
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
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

impl From<BuildError> for Failed {
    fn from(err: BuildError) -> Failed {
        Failed::new(Exit::Config, err)
    }
}

impl From<AcquireError> for Failed {
    fn from(err: AcquireError) -> Failed {
        let forbidden = |it: &NodeAnswer| {
            matches!(it, NodeAnswer::Failed(NodeFailure::NoPermission { .. } | NodeFailure::WrongPassword))
        };
        let exit = match &err {
            AcquireError::Held { .. } => Exit::Held,
            AcquireError::NoQuorum { nodes, .. } if nodes.iter().any(|it| forbidden(&it.answer)) => Exit::NoPermission,
            AcquireError::NoQuorum { .. } | AcquireError::TooLate { .. } | AcquireError::KeyInUse { .. } => {
                Exit::NoQuorum
            }
            AcquireError::ShutDown | AcquireError::Forked => Exit::Internal,
            _ => Exit::Usage,
        };
        Failed::new(exit, err)
    }
}
