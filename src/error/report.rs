//! What one node answered or was found to be: rows of errors and of the health check.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::finding::NodeFinding;
use crate::error::node_failure::NodeFailure;
use crate::ids::NodeId;
use crate::time::About;

/// The answer of one node in a round: a row of an error.
#[derive(Clone, Eq, PartialEq)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node.
    pub node: NodeId,
    /// Its host and port, or the path of its socket; without user and password.
    pub address: Arc<str>,
    /// Its answer.
    pub answer: NodeAnswer,
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.node, self.address, self.answer)
    }
}

impl fmt::Debug for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Rows of a report in one line. Nodes with the same answer share a row. Rows of failed nodes keep
/// their addresses, for the person who has to act.
pub(crate) struct Rows<'a>(pub(crate) &'a [NodeReport]);

impl fmt::Display for Rows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups: Vec<(String, Vec<&NodeReport>)> = Vec::new();
        for row in self.0 {
            let text = row.answer.to_string();
            match groups.iter_mut().find(|(it, _)| *it == text) {
                Some((_, rows)) => rows.push(row),
                None => groups.push((text, vec![row])),
            }
        }
        // A grant or a missing answer needs no action.
        let is_idle = |row: &&NodeReport| {
            row.answer.is_granted()
                || matches!(row.answer, NodeAnswer::Pending | NodeAnswer::NotAsked)
        };
        groups.sort_by_key(|(_, rows)| rows.iter().all(is_idle));
        let groups = groups.iter().map(|(text, rows)| {
            let with_address = rows.len() == 1
                || rows
                    .iter()
                    .all(|it| matches!(it.answer, NodeAnswer::Failed(_)));
            let nodes = rows.iter().map(|NodeReport { node, address, .. }| {
                if with_address {
                    format!("{node} ({address})")
                } else {
                    node.to_string()
                }
            });
            format!("{}: {text}", joined(nodes, ", "))
        });
        f.write_str(&joined(groups, "; "))
    }
}

pub(super) fn joined(items: impl IntoIterator<Item: ToString>, between: &str) -> String {
    let items: Vec<_> = items.into_iter().map(|it| it.to_string()).collect();
    items.join(between)
}

/// The answer of one node.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum NodeAnswer {
    /// It granted the lock. The grant was released, because too few other nodes granted it.
    Granted,
    /// It granted the lock, but its fencing counter was ahead of the proposed token.
    GrantedBehind,
    /// Another owner holds the lock there.
    Held {
        /// Time to live of the other owner's key. `None`: no expiry; only its owner or an operator
        /// can remove it.
        left: Option<Duration>,
        /// The holder, if the key's value names one: `host/process` and perhaps a
        /// [label](crate::Builder::owner_label). `None`: another client's value, or a manager
        /// without a label. Cut, escaped, and only as reliable as the client that wrote it.
        holder: Option<Arc<str>>,
        /// The name, for a lock of [several names](crate::LockManager::multi_lock); otherwise
        /// `None`. Cut and escaped.
        name: Option<Arc<str>>,
    },
    /// Readers hold the lock there: see [`RwLock`](crate::RwLock).
    HeldByReaders {
        /// Time to live of the last of their entries. `None`: the lock's key has no expiry.
        left: Option<Duration>,
        /// The name, for a lock of [several names](crate::LockManager::multi_lock); otherwise
        /// `None`. Cut and escaped.
        name: Option<Arc<str>>,
    },
    /// The lock was extended there.
    Extended,
    /// The lock was released, or was already gone.
    Released,
    /// The key is gone or belongs to someone else.
    Gone,
    /// The fencing counter is ahead of this holder's token: another owner got the lock since.
    Superseded,
    /// The run is recorded there, or a later one: see [`once`](crate::once).
    Recorded,
    /// No run is recorded there. It counts if the node has the lock and has kept its data since the
    /// period began.
    NoRecord {
        /// How long it has kept its data.
        kept: Duration,
    },
    /// The round was decided before its answer arrived.
    Pending,
    /// Nothing was sent: there was nothing to release, or this manager holds the lock itself, or
    /// the call did not get its turn.
    NotAsked,
    /// It failed.
    Failed(NodeFailure),
}

impl NodeAnswer {
    /// Whether the caller's key is on the node.
    pub(crate) fn is_granted(&self) -> bool {
        matches!(self, NodeAnswer::Granted | NodeAnswer::GrantedBehind)
    }

    /// The same, text of one of several names.
    pub(crate) fn about(mut self, of: Arc<str>) -> NodeAnswer {
        if let NodeAnswer::Held { name, .. }
        | NodeAnswer::HeldByReaders { name, .. }
        | NodeAnswer::Failed(NodeFailure::KeyInUse { name, .. }) = &mut self
        {
            *name = Some(of);
        }
        self
    }
}

impl fmt::Display for NodeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAnswer::Granted => f.write_str("granted, then released"),
            NodeAnswer::GrantedBehind => {
                f.write_str("granted with its fencing counter ahead, then released")
            }
            NodeAnswer::Held { left, holder, name } => write_held(
                f,
                name.as_deref(),
                holder.as_deref().unwrap_or("another client"),
                *left,
            ),
            NodeAnswer::HeldByReaders { left, name } => {
                write_held(f, name.as_deref(), "readers", *left)
            }
            NodeAnswer::Extended => f.write_str("extended"),
            NodeAnswer::Released => f.write_str("released"),
            NodeAnswer::Gone => f.write_str("no longer ours"),
            NodeAnswer::Superseded => f.write_str("superseded"),
            NodeAnswer::Recorded => f.write_str("recorded"),
            NodeAnswer::NoRecord { kept } => {
                write!(f, "nothing recorded, data kept for {}", About(*kept))
            }
            NodeAnswer::Pending => f.write_str("answer not needed"),
            NodeAnswer::NotAsked => f.write_str("not asked"),
            NodeAnswer::Failed(failure) => failure.fmt(f),
        }
    }
}

/// Writes the holder and the time left.
fn write_held(
    f: &mut fmt::Formatter<'_>,
    name: Option<&str>,
    by: &str,
    left: Option<Duration>,
) -> fmt::Result {
    if let Some(name) = name {
        write!(f, "{name} is ")?;
    }
    write!(f, "held by {by}, ")?;
    match left {
        Some(left) => write!(f, "{} left", About(left)),
        None => f.write_str("no expiry"),
    }
}

/// One node, as [`LockManager::check_nodes`](crate::LockManager::check_nodes) found it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct NodeCheck {
    /// The node.
    pub node: NodeId,
    /// Its host and port, or the path of its socket; without user and password.
    pub address: Arc<str>,
    /// Why its vote does not count now.
    pub failure: Option<NodeFailure>,
    /// Weaknesses of a voting node; empty without an answer.
    pub findings: Vec<NodeFinding>,
    /// Round-trip time of a `TIME` command; `None` without an answer.
    pub round_trip: Option<Duration>,
    /// Reported server and version: `Redis 7.0.15`. `None` if not reported.
    pub version: Option<Arc<str>>,
    /// Reported uptime at the beginning of the connection, in whole seconds.
    pub uptime: Option<Duration>,
    /// Whether it logs every write to its disk, as reported: `appendonly`. Without it, a restart
    /// loses some or all locks and fencing counters. `None` if not reported.
    pub append_only: Option<bool>,
    /// The longest ttl of any lock, from the node's record. `None` without
    /// [quarantine](crate::Builder::quarantine) or without a record.
    pub max_ttl: Option<Duration>,
}

impl NodeCheck {
    /// Whether its vote counts and it has no weakness. [`NoReaders`](NodeFinding::NoReaders) is
    /// none.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        let mut findings = self.findings.iter();
        self.failure.is_none() && findings.all(|it| matches!(it, NodeFinding::NoReaders { .. }))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::node_failure::QuarantineReason;

    fn rows(answers: &[NodeAnswer]) -> String {
        let row = |(i, answer): (u8, &NodeAnswer)| NodeReport {
            node: NodeId::new(i),
            address: format!("10.0.0.{i}:6379").into(),
            answer: answer.clone(),
        };
        let rows: Vec<_> = (0..).zip(answers).map(row).collect();
        Rows(&rows).to_string()
    }

    fn held(millis: u64) -> NodeAnswer {
        let left = Some(Duration::from_millis(millis));
        NodeAnswer::Held {
            left,
            holder: Some("web-3/4711".into()),
            name: None,
        }
    }

    #[test]
    fn nodes_with_the_same_answer_share_a_row() {
        assert_eq!(
            rows(&[held(9_812), held(9_809), held(9_811)]),
            "n0, n1, n2: held by web-3/4711, 9.8 s left"
        );
        assert_eq!(
            rows(&[held(9_812), NodeAnswer::Pending, held(9_809)]),
            "n0, n2: held by web-3/4711, 9.8 s left; n1 (10.0.0.1:6379): answer not needed"
        );
        assert_eq!(
            rows(&[held(9_812)]),
            "n0 (10.0.0.0:6379): held by web-3/4711, 9.8 s left"
        );
        assert_eq!(rows(&[]), "");
    }

    #[test]
    fn failed_nodes_that_share_a_row_keep_their_addresses() {
        let down = || {
            NodeAnswer::Failed(NodeFailure::Connect {
                reason: "connection refused".to_owned(),
            })
        };
        let quiet = NodeAnswer::Failed(NodeFailure::Quarantined {
            left: Duration::from_millis(4_321),
            why: QuarantineReason::Emptied,
        });
        assert_eq!(
            rows(&[down(), NodeAnswer::Granted, quiet, down()]),
            "n0 (10.0.0.0:6379), n3 (10.0.0.3:6379): cannot connect: connection refused; \
             n2 (10.0.0.2:6379): quarantined for 4.3 s more: the server lost its data, and held \
             locks with it; wait until its quarantine is over; \
             n1 (10.0.0.1:6379): granted, then released"
        );
    }
}
