//! A problem of the servers.

use clap::builder::styling::Style;
use quorlock::error::NodeCheck;

use crate::exit::Exit;
use crate::screen;

/// The weight of a finding.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Level {
    /// Information.
    Note,
    /// Locks work, but are weaker.
    Warning,
    /// Locks do not work, or are not safe.
    Unfit,
}

/// A problem.
#[derive(Clone, PartialEq)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// For programs. Must not change.
    pub(crate) what: &'static str,
    /// The node and its address; none for all nodes together.
    pub(crate) node: Option<(String, String)>,
    pub(crate) seen: String,
    pub(crate) why: &'static str,
    pub(crate) action: String,
}

impl Level {
    /// The name, the exit status and the style.
    pub(crate) fn parts(self) -> (&'static str, u8, Style) {
        match self {
            Level::Note => ("note", 0, screen::BLUE),
            Level::Warning => ("warning", 1, screen::YELLOW),
            Level::Unfit => ("unfit", Exit::UNFIT.number(), screen::RED),
        }
    }
}

/// The node of a finding.
pub(crate) fn at(check: &NodeCheck) -> Option<(String, String)> {
    Some((check.node.to_string(), check.address.to_string()))
}
