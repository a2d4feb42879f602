//! One thing that is not right with the servers.

use quorlock::error::NodeCheck;

use crate::exit::Exit;

/// How much it matters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Level {
    /// Good to know.
    Note,
    /// Locks work, and are weaker than they could be.
    Warning,
    /// Locks do not work here, or not as they should.
    Unfit,
}

/// One thing that is not right.
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// For programs: stays the same.
    pub(crate) what: &'static str,
    /// Which node, and its address; none: it is about all of them.
    pub(crate) node: Option<(String, String)>,
    pub(crate) seen: String,
    pub(crate) why: &'static str,
    pub(crate) action: String,
}

impl Level {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Unfit => "unfit",
        }
    }

    pub(crate) fn status(self) -> u8 {
        match self {
            Level::Note => 0,
            Level::Warning => 1,
            Level::Unfit => Exit::UNFIT.number(),
        }
    }
}

/// That it is about this node.
pub(crate) fn at(check: &NodeCheck) -> Option<(String, String)> {
    Some((check.node.to_string(), check.address.to_string()))
}
