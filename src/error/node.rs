//! What one node answered, or why it did not.

use std::fmt;
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::error::finding::NodeFinding;
use crate::error::tls::TlsFailure;
use crate::ids::NodeId;
use crate::time::About;

/// What one node answered in a round: a row of an error.
#[derive(Clone, Eq, PartialEq)]
#[non_exhaustive]
pub struct NodeReport {
    /// Which node.
    pub node: NodeId,
    /// Its host and port, or the path of its socket; without user and password.
    pub address: Arc<str>,
    /// What it answered.
    pub answer: NodeAnswer,
}

impl NodeReport {
    pub(crate) fn new(node: NodeId, address: Arc<str>, answer: NodeAnswer) -> NodeReport {
        NodeReport { node, address, answer }
    }
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

/// Rows of a report in one line. Nodes that say the same share a row; that of failed nodes keeps their addresses, because
/// it is there that something has to be done.
pub(crate) struct Rows<'a>(pub(crate) &'a [NodeReport]);

impl fmt::Display for Rows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups: Vec<(String, Vec<&NodeReport>)> = Vec::new();
        for row in self.0 {
            let said = row.answer.to_string();
            match groups.iter_mut().find(|(it, _)| *it == said) {
                Some((_, rows)) => rows.push(row),
                None => groups.push((said, vec![row])),
            }
        }
        for (i, (said, rows)) in groups.iter().enumerate() {
            if 0 < i {
                f.write_str("; ")?;
            }
            let with_address = rows.len() == 1 || rows.iter().all(|it| matches!(it.answer, NodeAnswer::Failed(_)));
            for (i, row) in rows.iter().enumerate() {
                if 0 < i {
                    f.write_str(", ")?;
                }
                write!(f, "{}", row.node)?;
                if with_address {
                    write!(f, " ({})", row.address)?;
                }
            }
            write!(f, ": {said}")?;
        }
        Ok(())
    }
}

/// The answer of one node.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum NodeAnswer {
    /// It granted the lock. This stands in errors only, and the grant has been given back: others had too many nodes.
    Granted,
    /// It granted the lock, but its fencing counter was ahead of the token that was proposed.
    GrantedBehind,
    /// Another owner holds the lock there.
    Held {
        /// How long the other owner's key still has to live. `None`: it has no expiry, and only its owner or an
        /// operator can remove it.
        left: Option<Duration>,
        /// Who that is, if the key's value says so behind its secret part: `host/process`, and perhaps a label, of a
        /// [manager](crate::Builder::owner_label). `None`: another client's value, or that of a manager that does not want
        /// to say. Cut, escaped, and no more reliable than the client that wrote it.
        holder: Option<Arc<str>>,
        /// Which name it is, of a lock of [several](crate::LockManager::multi); `None` for a lock of one name. Cut and escaped.
        name: Option<Arc<str>>,
    },
    /// Readers hold the lock there: see [`RwLock`](crate::RwLock).
    HeldByReaders {
        /// How long the last of their entries still has to live. `None`: the lock's key has no expiry.
        left: Option<Duration>,
        /// Which name it is, of a lock of [several](crate::LockManager::multi); `None` for a lock of one name. Cut and escaped.
        name: Option<Arc<str>>,
    },
    /// The lock is free there, or held by readers and wanted by another, but reserved for a call that has waited for it.
    Reserved {
        /// How long the reservation lasts.
        left: Duration,
        /// Which name it is, of a lock of [several](crate::LockManager::multi); `None` for a lock of one name.
        name: Option<Arc<str>>,
    },
    /// The lock was extended there.
    Extended,
    /// The lock was released there, or was not there any more.
    Released,
    /// The lock's key is gone there, or belongs to someone else.
    Gone,
    /// The lock's fencing counter there is ahead of this holder's token: another owner has been granted it since.
    Superseded,
    /// Its answer had not come when the round was decided, and was not waited for.
    Pending,
    /// Nothing was sent to the node: there is nothing to release there, or it was clear without asking that this
    /// manager holds the lock itself, or the call's turn to ask did not come in time.
    NotAsked,
    /// It could not vote.
    Failed(NodeFailure),
}

impl NodeAnswer {
    /// The caller's key stands there.
    pub(crate) fn is_granted(&self) -> bool {
        matches!(self, NodeAnswer::Granted | NodeAnswer::GrantedBehind)
    }

    /// The same, said of one of several names.
    pub(crate) fn about(mut self, of: Arc<str>) -> NodeAnswer {
        if let NodeAnswer::Held { name, .. }
        | NodeAnswer::HeldByReaders { name, .. }
        | NodeAnswer::Reserved { name, .. }
        | NodeAnswer::Failed(NodeFailure::WrongType { name } | NodeFailure::BadCounter { name }) = &mut self
        {
            *name = Some(of);
        }
        self
    }
}

impl fmt::Display for NodeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAnswer::Granted => f.write_str("granted, given back"),
            NodeAnswer::GrantedBehind => f.write_str("granted with its fencing counter ahead, given back"),
            NodeAnswer::Held { left, holder, name } => {
                write_held(f, name.as_deref(), holder.as_deref().unwrap_or("another client"), *left)
            }
            NodeAnswer::HeldByReaders { left, name } => write_held(f, name.as_deref(), "readers", *left),
            NodeAnswer::Reserved { name, .. } => {
                write_name(f, name.as_deref())?;
                f.write_str("free, but reserved for a call that waits")
            }
            NodeAnswer::Extended => f.write_str("extended"),
            NodeAnswer::Released => f.write_str("released"),
            NodeAnswer::Gone => f.write_str("no longer ours"),
            NodeAnswer::Superseded => f.write_str("superseded"),
            NodeAnswer::Pending => f.write_str("not waited for"),
            NodeAnswer::NotAsked => f.write_str("not asked"),
            NodeAnswer::Failed(failure) => failure.fmt(f),
        }
    }
}

/// A name in front of what is said about its key.
struct Of<'a>(&'a Option<Arc<str>>);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_deref().map_or(Ok(()), |it| write!(f, "{it}: "))
    }
}

/// Who holds the lock, and for how long.
fn write_held(f: &mut fmt::Formatter<'_>, name: Option<&str>, by: &str, left: Option<Duration>) -> fmt::Result {
    write_name(f, name)?;
    write!(f, "held by {by}, ")?;
    match left {
        Some(left) => write!(f, "{} left", About(left)),
        None => f.write_str("no expiry"),
    }
}

/// A name in front of what is said about its lock.
fn write_name(f: &mut fmt::Formatter<'_>, name: Option<&str>) -> fmt::Result {
    name.map_or(Ok(()), |it| write!(f, "{it} is "))
}

/// Why a node in [quarantine](crate::Builder::quarantine) may have forgotten locks that are held, and what to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Quarantine {
    /// Nobody has used it for locks, as far as anybody here knows: it is new, or was restarted without its data.
    #[error(
        "nobody has used it for locks before, so it is new, or was restarted without its data; wait for so long, as lock() \
         does, or call LockManager::vouch if it is new and nobody holds a lock"
    )]
    New,
    /// It was restarted, promoted, restored from a snapshot or swapped.
    #[error(
        "its server was restarted, promoted or restored, and may have forgotten locks that are still held; wait for so long, \
         as lock() does"
    )]
    Restarted,
    /// It has lost what it had stored, while it was running.
    #[error("it has lost its data, and with it locks that are still held; wait for so long, as lock() does")]
    Emptied,
    /// Its clock was set forward, so locks have expired early there.
    #[error(
        "its clock was set forward, and locks that are still held have expired there; wait for so long, as lock() does, and \
         let its time daemon slew the clock"
    )]
    ClockStep,
    /// It does not say which process it is, so it may have been restarted before every connection.
    #[error(
        "it does not say who it is, and may have been restarted before we connected; wait for so long, as lock() does, and \
         permit INFO: see the ACL line in the guide"
    )]
    Unverifiable,
}

/// Why a node could not vote, and what to do about it.
///
/// Text that came from a server is cut to a line and escaped, and of long hex numbers only the beginning is shown, because
/// servers echo arguments; what a server says while logging in is never repeated, because servers echo passwords.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum NodeFailure {
    /// It did not answer within the response timeout.
    #[error("no answer in time")]
    TimedOut,
    /// It has not answered earlier commands for longer than the response timeout, so it was not asked.
    #[error("not responding")]
    Stalled,
    /// The name could not be resolved, or the connection was refused or not established in time.
    #[error("cannot connect: {reason}")]
    Connect {
        /// What the system said.
        reason: String,
    },
    /// The connection ended before the answer came.
    #[error("connection lost: {reason}")]
    Disconnected {
        /// What the system said.
        reason: String,
    },
    /// The connection could not be secured, or would have to be.
    #[error("TLS: {0}")]
    Tls(TlsFailure),
    /// The server wants a password, or another one, or another user name.
    #[error("login refused: check user and password, in the node's URL or given to Builder::credentials")]
    WrongPassword,
    /// The server is in protected mode: it has no password, and so it serves nobody from another machine.
    #[error("in protected mode, so it serves its own machine only: set a password there and give it in the node's URL")]
    ProtectedMode,
    /// The server's access list forbids a command or a key.
    #[error("not permitted: {message}; see the ACL line in the guide")]
    NoPermission {
        /// What the server said.
        message: String,
    },
    /// The server has fewer databases than the number in the URL.
    #[error("cannot use the database in the node's URL")]
    BadDatabase,
    /// The server is still loading its data.
    #[error("loading its data")]
    Loading,
    /// The server is too old.
    #[error("Redis {version} is too old: 6.2 or newer is needed")]
    TooOld {
        /// What the server calls its version.
        version: String,
    },
    /// The server is a replica. Only a master may vote.
    #[error("a replica: give the address of a master, or all servers as redis+replicated://host,host")]
    Replica,
    /// The server is a Sentinel: it watches masters, and stores nothing.
    #[error("a Sentinel, which stores nothing: give the address of a master, or redis+sentinel://host,host/NAME")]
    Sentinel,
    /// The server was started, lost its data, or had its clock set forward a short while ago. It may have forgotten locks
    /// that are still held, so its grants do not count until those have expired.
    ///
    /// See [`Builder::quarantine`](crate::Builder::quarantine).
    #[error("quarantined for {} more: {why}", About(*left))]
    Quarantined {
        /// For how long it has no vote yet.
        left: Duration,
        /// Why, and what to do.
        why: Quarantine,
    },
    /// The server's clock is far behind the fencing token that was proposed to it: more than an hour. Either that clock
    /// or the one of this machine is wrong.
    #[error("its clock and the one of this machine are more than an hour apart: correct the wrong one")]
    ClockBehind,
    /// The server removes keys when its memory is full, and so may remove locks that are held. One whose memory is not
    /// limited [would](crate::NodeFinding::WouldEvict).
    #[error("may evict locks: its maxmemory-policy is {policy}, set it to noeviction")]
    Evicts {
        /// The server's `maxmemory-policy`.
        policy: String,
    },
    /// Something about the server can cost a lock. Only with [`Builder::strict`](crate::Builder::strict); without it the
    /// server votes.
    #[error("{finding} (refused by Builder::strict)")]
    Disqualified {
        /// What that is, and what to do.
        finding: NodeFinding,
    },
    /// The server is out of memory.
    #[error("out of memory: raise maxmemory, or use a server of its own for locks")]
    OutOfMemory,
    /// The server refuses writes because it cannot persist or has too few replicas.
    #[error("refuses writes: {message}")]
    WritesRefused {
        /// What the server said.
        message: String,
    },
    /// The server is running a script that does not end.
    #[error("busy with a long script")]
    Busy,
    /// The server has as many clients as it allows.
    #[error("too many clients: raise maxclients")]
    TooManyClients,
    /// Of a node that is a master and its replicas (`redis+replicated://`), none says that it is the master.
    #[error("none of its servers says that it is a master: {said}")]
    NoMaster {
        /// What each of them said.
        said: String,
    },
    /// Two servers of a node (`redis+replicated://`) say that they are masters. Locks that one grants the other does not
    /// know, so neither votes.
    #[error(
        "two of its servers say that they are masters, {first} and {second}: stop the one that is not, or make it a replica \
         of the other"
    )]
    TwoMasters {
        /// The address of one.
        first: String,
        /// The address of another.
        second: String,
    },
    /// A majority of the node's sentinels (`redis+sentinel://`) did not answer, so nobody can tell whether another server has
    /// become the master.
    #[error("{answered} of {of} sentinels answered, and a majority is needed: {said}")]
    SentinelsUnreachable {
        /// How many did.
        answered: usize,
        /// How many there are.
        of: usize,
        /// What was heard of the others.
        said: String,
    },
    /// The node's sentinels answered, and no majority of them names the server that the newest configuration names. That is
    /// so for a moment in a failover.
    #[error(
        "no majority of its sentinels names the newest master: a failover is under way, or some are cut off: {said}"
    )]
    SentinelsDisagree {
        /// What each of them said.
        said: String,
    },
    /// The node's sentinels watch no master of that name.
    #[error("its sentinels know no master {name}: see `sentinel monitor` in their configuration")]
    UnknownMaster {
        /// The name in the node's URL.
        name: String,
    },
    /// The node's sentinels want a password, or another one.
    #[error(
        "login refused by its sentinels: check user and password, sentinel_password in the node's URL or given to \
         Builder::sentinel_credentials"
    )]
    SentinelPassword,
    /// Fewer replicas than [the node's address asks for](crate::guide::nodes#waiting-for-replicas) have said in time that they have
    /// the lock, so the grant does not count.
    #[error("{acknowledged} replicas have it, and wait_replicas in its URL asks for {needed}")]
    NotReplicated {
        /// How many have.
        acknowledged: u64,
        /// How many are needed.
        needed: u32,
    },
    /// For too long nobody has confirmed that the server is still the master of the node, which is more than one process.
    #[error("nobody has confirmed lately that it is still the master")]
    Unconfirmed,
    /// The server is part of a Redis Cluster, whose nodes are not independent.
    #[error("a cluster node: locks need independent servers")]
    ClusterNode,
    /// The lock's key, or a key beside it, holds a value of another type: something else uses that name.
    #[error("{}the key holds another type", Of(name))]
    WrongType {
        /// Which name it is, of a lock of [several](crate::LockManager::multi); `None` for a lock of one name.
        name: Option<Arc<str>>,
    },
    /// The fencing counter beside the lock is not a number below 2^53.
    #[error("{}the fencing counter holds nonsense", Of(name))]
    BadCounter {
        /// Which name it is, of a lock of [several](crate::LockManager::multi); `None` for a lock of one name.
        name: Option<Arc<str>>,
    },
    /// Another configured node shows the same run id, so it is the same server process, or one of them claims to be. The
    /// two have one vote, and it is the other's for as long as that is connected, and for the longest ttl after that.
    #[error("the same server as {other}: every node must be a server of its own")]
    SameServer {
        /// The node that keeps the vote.
        other: NodeId,
    },
    /// What came back is not an answer that a Redis server gives. The connection was closed.
    #[error("not a Redis answer: {reason}")]
    Protocol {
        /// What was wrong with it.
        reason: String,
    },
    /// The server answered with an error that has no row of its own here.
    #[error("refused: {message}")]
    Refused {
        /// What the server said.
        message: String,
    },
    /// The manager is shutting down and no longer talks to this node.
    #[error("shut down")]
    ShutDown,
    /// A bug in this crate: the node's thread panicked. Please report it.
    #[error("internal error, see the log")]
    Internal,
}

/// What a failure is, whatever is in it.
pub(crate) type FailureKind =
    (Discriminant<NodeFailure>, Option<Discriminant<NodeFinding>>, Option<Discriminant<TlsFailure>>);

impl NodeFailure {
    pub(crate) fn kind(&self) -> FailureKind {
        let finding = if let NodeFailure::Disqualified { finding } = self { Some(discriminant(finding)) } else { None };
        let tls = if let NodeFailure::Tls(failure) = self { Some(discriminant(failure)) } else { None };
        (discriminant(self), finding, tls)
    }

    /// Whether it stays as it is until somebody changes the server, its settings or the address: the log warns of it.
    /// `SameServer` does not count: the log warns of the pair.
    pub(crate) fn needs_somebody(&self) -> bool {
        if let NodeFailure::Tls(failure) = self {
            return failure.needs_somebody();
        }
        matches!(
            self,
            NodeFailure::WrongPassword
                | NodeFailure::ProtectedMode
                | NodeFailure::NoPermission { .. }
                | NodeFailure::BadDatabase
                | NodeFailure::TooOld { .. }
                | NodeFailure::Replica
                | NodeFailure::Sentinel
                | NodeFailure::TwoMasters { .. }
                | NodeFailure::UnknownMaster { .. }
                | NodeFailure::SentinelPassword
                | NodeFailure::ClusterNode
                | NodeFailure::Evicts { .. }
                | NodeFailure::Disqualified { .. }
                | NodeFailure::OutOfMemory
                | NodeFailure::WritesRefused { .. }
                | NodeFailure::Protocol { .. }
                | NodeFailure::Refused { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(answers: &[NodeAnswer]) -> String {
        let row = |(i, answer): (u8, &NodeAnswer)| {
            NodeReport::new(NodeId::new(i), format!("10.0.0.{i}:6379").into(), answer.clone())
        };
        let rows: Vec<_> = (0..).zip(answers).map(row).collect();
        Rows(&rows).to_string()
    }

    fn held(millis: u64) -> NodeAnswer {
        let left = Some(Duration::from_millis(millis));
        NodeAnswer::Held { left, holder: Some("web-3/4711".into()), name: None }
    }

    #[test]
    fn nodes_that_say_the_same_share_a_row() {
        assert_eq!(rows(&[held(9_812), held(9_809), held(9_811)]), "n0, n1, n2: held by web-3/4711, 9.8 s left");
        assert_eq!(
            rows(&[held(9_812), NodeAnswer::Pending, held(9_809)]),
            "n0, n2: held by web-3/4711, 9.8 s left; n1 (10.0.0.1:6379): not waited for"
        );
        assert_eq!(rows(&[held(9_812)]), "n0 (10.0.0.0:6379): held by web-3/4711, 9.8 s left");
        assert_eq!(rows(&[]), "");
    }

    #[test]
    fn failed_nodes_that_share_a_row_keep_their_addresses() {
        let down = || NodeAnswer::Failed(NodeFailure::Connect { reason: "connection refused".to_owned() });
        let quiet = NodeAnswer::Failed(NodeFailure::Quarantined {
            left: Duration::from_millis(4_321),
            why: Quarantine::Emptied,
        });
        assert_eq!(
            rows(&[down(), NodeAnswer::Granted, quiet, down()]),
            "n0 (10.0.0.0:6379), n3 (10.0.0.3:6379): cannot connect: connection refused; \
             n1 (10.0.0.1:6379): granted, given back; \
             n2 (10.0.0.2:6379): quarantined for 4.3 s more: it has lost its data, and with it locks that are still held; wait for so \
             long, as lock() does"
        );
    }
}
