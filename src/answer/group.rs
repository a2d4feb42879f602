//! What the members of a node say that is more than one process.

use crate::error::NodeFailure;

/// What a member said when it was asked where the master is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Said {
    /// "I am." A server.
    Master,
    /// "I am a replica." A server.
    Replica,
    /// "It is there", since the configuration with that number. A sentinel.
    Named { host: String, port: u16, epoch: u64 },
    /// "I know no master of that name." A sentinel.
    UnknownMaster,
    /// It said something else, or nothing.
    Failed(NodeFailure),
}
