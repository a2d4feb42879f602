//! One node, as it was found.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::finding::NodeFinding;
use crate::error::node_failure::NodeFailure;
use crate::ids::NodeId;

/// One node, as [`LockManager::check_nodes`](crate::LockManager::check_nodes) found it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct NodeCheck {
    /// Which node.
    pub node: NodeId,
    /// Its host and port, or the path of its socket; without user and password.
    pub address: Arc<str>,
    /// Why its vote does not count now, if so.
    pub failure: Option<NodeFailure>,
    /// What weakens the locks although it votes; empty if it could not be asked.
    pub findings: Vec<NodeFinding>,
    /// How long it took just now to ask it for its time and to hear it; `None` if it could not be asked.
    pub round_trip: Option<Duration>,
    /// What runs there, as it says itself: `Redis 7.0.15`. `None` if it does not.
    pub version: Option<Arc<str>>,
    /// For how long it had been running at the beginning of the connection, as it says itself, in whole seconds.
    pub uptime: Option<Duration>,
    /// Whether it logs every write to its disk, as it says itself: `appendonly`. One that does
    /// not has forgotten some or all of its locks and fencing counters after a restart. `None` if it does not say.
    pub append_only: Option<bool>,
    /// The longest ttl of any lock, as the node's record has it. `None` without [quarantine](crate::Builder::quarantine), and if
    /// there is no record yet.
    pub max_ttl: Option<Duration>,
}

impl NodeCheck {
    /// Whether its vote counts and nothing was found.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.failure.is_none() && self.findings.is_empty()
    }
}

impl fmt::Display for NodeCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): ", self.node, self.address)?;
        match &self.failure {
            Some(failure) => write!(f, "no vote: {failure}")?,
            None => f.write_str("votes")?,
        }
        for finding in &self.findings {
            write!(f, "; {finding}")?;
        }
        Ok(())
    }
}
