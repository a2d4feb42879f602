//! One node, as it was found.

use std::fmt;
use std::sync::Arc;

use crate::error::finding::NodeFinding;
use crate::error::node::NodeFailure;
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
