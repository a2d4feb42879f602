//! Errors that a stand-in returns instead of running a script.

/// Why a stand-in refuses to run scripts: see [`Node::refuse`](super::Node::refuse).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// Its memory is full:
    /// [`NodeFailure::WritesRefused`](quorlock::error::NodeFailure::WritesRefused).
    OutOfMemory,
    /// It has become a replica: [`NodeFailure::Replica`](quorlock::error::NodeFailure::Replica).
    Replica,
    /// It is still loading its data:
    /// [`NodeFailure::Loading`](quorlock::error::NodeFailure::Loading).
    Loading,
    /// It runs somebody's endless script:
    /// [`NodeFailure::Busy`](quorlock::error::NodeFailure::Busy).
    Busy,
    /// Its access list forbids it: [`NodeFailure::Access`](quorlock::error::NodeFailure::Access).
    NoPermission,
}

impl Refusal {
    /// As servers report it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Refusal::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
            Refusal::Replica => "READONLY You can't write against a read only replica.",
            Refusal::Loading => "LOADING Redis is loading the dataset in memory",
            Refusal::Busy => {
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN \
                 NOSAVE."
            }
            Refusal::NoPermission => {
                "NOPERM User default has no permissions to run the 'evalsha' command"
            }
        }
    }
}
