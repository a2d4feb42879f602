//! Why a node could not vote.

use std::fmt;
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::error::finding::NodeFinding;
use crate::error::tls_failure::TlsFailure;
use crate::ids::NodeId;
use crate::time::About;

/// A name in front of what is said about its key.
struct Of<'a>(&'a Option<Arc<str>>);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_deref().map_or(Ok(()), |it| write!(f, "{it}: "))
    }
}

/// Why a [quarantined](crate::Builder::quarantine) node may have lost locks, and what to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuarantineReason {
    /// No trace of locks: it is new, or was restarted without its data.
    #[error(
        "no lock data, so the server is new or was restarted without its data; wait, or vouch for it if it is new and nobody \
         holds a lock"
    )]
    New,
    /// It was restarted, promoted, restored from a snapshot or swapped.
    #[error(
        "the server was restarted, promoted or restored, and may have lost held locks; wait until its quarantine is over"
    )]
    Restarted,
    /// It lost its data while it was running.
    #[error("the server lost its data, and held locks with it; wait until its quarantine is over")]
    Emptied,
    /// Its clock was stepped forward, so locks expired early.
    #[error(
        "its clock was set forward, so held locks have expired there; wait until its quarantine is over, and let its time \
         daemon slew the clock"
    )]
    ClockStep,
    /// It hides its run id, so it may have been restarted before every connection.
    #[error(
        "it hides its run ID, and may have been restarted before this connection; wait until its quarantine is over, and \
         permit INFO: see the ACL line in the guide"
    )]
    Unverifiable,
}

const MANAGER_WITHOUT: &str = "other programs use it with quarantine, and this one without: enable quarantine here, or use \
    dedicated servers";
const SERVER_WITHOUT: &str = "other programs use it without quarantine, so it may grant held locks: disable quarantine here \
    if the servers are for tests, or empty the server, with all its locks, while no such program runs";

/// Why a node did not count, and what to do.
///
/// Server text is cut to one line and escaped, and long hex numbers are shortened, because servers echo arguments. Messages during the
/// login are never shown, because servers echo passwords.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum NodeFailure {
    /// No answer within the response timeout.
    #[error("no answer in time")]
    TimedOut,
    /// Earlier commands are unanswered beyond the response timeout, so the node was skipped.
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
    /// TLS failed, or the server requires it.
    #[error("TLS: {0}")]
    Tls(TlsFailure),
    /// Wrong user or password.
    #[error("login refused: check user and password")]
    WrongPassword,
    /// A password is required and none was given.
    #[error("a password is required, and none was given")]
    NoPassword,
    /// The server is in protected mode: without a password it serves its own machine only.
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
    /// The server is Garnet, which runs scripts in parallel by default, so two clients may get one lock.
    #[error("Garnet {version}, which does not run scripts one at a time: use Redis or Valkey")]
    NotAtomic {
        /// What the server calls its version.
        version: String,
    },
    /// The server merges writes with others (KeyDB's `active-replica`), so two clients may get one lock.
    #[error(
        "an active replica, so another server grants the same locks: disable active-replica, or use dedicated servers"
    )]
    MultiMaster,
    /// The server is a replica. Only a primary counts.
    #[error("a replica: give the address of a master, or all servers as redis+replicated://host,host")]
    Replica,
    /// The server is a Sentinel, which stores nothing.
    #[error("a Sentinel, which stores nothing: give the address of a master, or redis+sentinel://host,host/NAME")]
    Sentinel,
    /// The server was started, lost its data, or had its clock stepped forward a short while ago. It may have lost held locks, so its
    /// grants do not count until these have expired.
    ///
    /// See [`Builder::quarantine`](crate::Builder::quarantine).
    #[error("quarantined for {} more: {why}", About(*left))]
    Quarantined {
        /// Time left.
        left: Duration,
        /// Why, and what to do.
        why: QuarantineReason,
    },
    /// The server's record (key `quorlock:record`) changed again and again while a command was sent.
    #[error("its record changes all the time: check that no program deletes or sets the key quorlock:record there")]
    RecordChanged,
    /// The server has a quarantine and this manager has none, or the other way round. The first user of a server decides for all.
    ///
    /// See [`Builder::quarantine`](crate::Builder::quarantine).
    #[error("{}", if *on_server { MANAGER_WITHOUT } else { SERVER_WITHOUT })]
    QuarantineDiffers {
        /// Whether it is the server that has one.
        on_server: bool,
    },
    /// The server's clock is far behind the fencing token that was proposed to it: more than an hour. Either that clock
    /// or the one of this machine is wrong.
    #[error("its clock and the one of this machine are more than an hour apart: correct the wrong one")]
    ClockBehind,
    /// The server removes keys when its memory is full, and so may remove locks that are held. One whose memory is not
    /// limited [would](crate::error::NodeFinding::WouldEvict).
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
    /// The server refuses writes: it cannot persist them or has too few replicas.
    #[error("refuses writes: {message}")]
    WritesRefused {
        /// What the server said.
        message: String,
    },
    /// The server is busy with a long script.
    #[error("busy with a long script")]
    Busy,
    /// The server has no room for more clients.
    #[error("too many clients: raise maxclients")]
    TooManyClients,
    /// Of a node that is a master and its replicas (`redis+replicated://`), none says that it is the master.
    #[error("none of its servers says that it is a master: {}", MemberList(said))]
    NoMaster {
        /// What each of them said.
        said: Vec<MemberReport>,
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
    #[error("{answered} of {of} sentinels answered, and a majority is needed: {}", MemberList(said))]
    SentinelsUnreachable {
        /// How many did.
        answered: usize,
        /// How many there are.
        of: usize,
        /// What each of them said, or why it could not be asked.
        said: Vec<MemberReport>,
    },
    /// The node's sentinels answered, and no majority of them names the server that the newest configuration names. That is
    /// so for a moment in a failover.
    #[error(
        "no majority of its sentinels names the newest master: a failover is under way, or some are cut off: {}",
        MemberList(said)
    )]
    SentinelsDisagree {
        /// What each of them said.
        said: Vec<MemberReport>,
    },
    /// The node's sentinels watch no master of that name.
    #[error("its sentinels know no master {name}: see `sentinel monitor` in their configuration")]
    UnknownMaster {
        /// The name in the node's URL.
        name: String,
    },
    /// The node's sentinels want a password, or another one.
    #[error(
        "login refused by its sentinels: check their user and password, such as sentinel_password in the node's URL"
    )]
    SentinelPassword,
    /// For too long nobody has confirmed that the server is still the master of the node, which is more than one process.
    #[error("nobody has confirmed lately that it is still the master")]
    Unconfirmed,
    /// The server is part of a Redis Cluster, and the node's address does not say so.
    #[error("part of a cluster: give all of it as one node, redis+cluster://host,host, or an independent server")]
    ClusterNode,
    /// The node's address says that it is a Redis Cluster, and a server of it is none.
    #[error("not part of a cluster: give it as redis://host")]
    NoCluster,
    /// Of a node that is a cluster (`redis+cluster://`), the master that was asked does not serve the slot of this name any more,
    /// or not yet, or its keys are moving. The next attempt asks the one that does.
    #[error("the slot of this name is moving to another master of the cluster, or has just moved: {said}")]
    SlotMoved {
        /// What the server said.
        said: String,
    },
    /// Of a node that is a cluster (`redis+cluster://`), no master serves the slot of this name.
    #[error("no master of the cluster serves the slot of this name: {said}; see CLUSTER INFO and CLUSTER NODES there")]
    SlotNotServed {
        /// What is known of it.
        said: String,
    },
    /// Of a node that is a cluster (`redis+cluster://`), no server has said who serves which slots.
    #[error("no server of the cluster says who serves which slots: {said}")]
    NoMap {
        /// What each of them said.
        said: String,
    },
    /// The lock's key, or a key beside it, holds a value of another type: something else uses that name.
    #[error("{}the key holds another type", Of(name))]
    WrongType {
        /// Which name it is, of a lock of [several](crate::LockManager::multi_lock); `None` for a lock of one name.
        name: Option<Arc<str>>,
    },
    /// The fencing counter beside the lock is not a number below 2^53.
    #[error("{}the fencing counter holds nonsense", Of(name))]
    BadCounter {
        /// Which name it is, of a lock of [several](crate::LockManager::multi_lock); `None` for a lock of one name.
        name: Option<Arc<str>>,
    },
    /// Another configured node shows the same run id, so it is the same server process, or one of them claims to be. The
    /// two have one vote, and it is the other's for as long as that is connected, and for the longest ttl after that.
    #[error("the same server as {other}: every node must be a server of its own")]
    SameServer {
        /// The node that keeps the vote.
        other: NodeId,
    },
    /// The reply is not valid for a Redis server. The connection was closed.
    #[error("not a Redis answer: {reason}")]
    Protocol {
        /// What was wrong with it.
        reason: String,
    },
    /// Another error reply.
    #[error("refused: {message}")]
    Refused {
        /// What the server said.
        message: String,
    },
    /// The manager is shutting down.
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

    /// Whether a server of a cluster says that a slot is no longer its own, with all that was in it. While some of the keys are
    /// there still it asks for another try.
    pub(crate) fn is_of_past_owner(&self) -> bool {
        matches!(self, NodeFailure::SlotMoved { said } if !said.starts_with("TRYAGAIN"))
    }

    /// What came is no answer to what was asked.
    pub(crate) fn of_another_command() -> NodeFailure {
        NodeFailure::Protocol { reason: "an answer to another command".to_owned() }
    }

    /// The same of a server that was not given as part of a cluster: one that speaks of slots is.
    pub(crate) fn outside_clusters(self) -> NodeFailure {
        match self {
            NodeFailure::SlotMoved { .. } | NodeFailure::SlotNotServed { .. } => NodeFailure::ClusterNode,
            other => other,
        }
    }

    /// Whether the server lets this program in only after somebody has changed its settings or ours: waiting ends nothing.
    pub(crate) fn is_of_access(&self) -> bool {
        match self {
            NodeFailure::NoMaster { said } | NodeFailure::SentinelsUnreachable { said, .. } => {
                said.iter().all(|it| matches!(&it.answer, MemberAnswer::Failed(it) if it.is_of_access()))
            }
            NodeFailure::WrongPassword | NodeFailure::NoPassword | NodeFailure::SentinelPassword => true,
            NodeFailure::NoPermission { .. } | NodeFailure::QuarantineDiffers { .. } => true,
            _ => false,
        }
    }

    /// Whether it stays as it is until somebody changes the server, its settings or the address: the log warns of it.
    /// `SameServer` does not count: the log warns of the pair.
    pub(crate) fn needs_somebody(&self) -> bool {
        match self {
            NodeFailure::Tls(failure) => return failure.needs_somebody(),
            // Of servers that are several, if one of them does.
            NodeFailure::NoMaster { said } | NodeFailure::SentinelsUnreachable { said, .. } => {
                return said.iter().any(|it| matches!(&it.answer, MemberAnswer::Failed(it) if it.needs_somebody()));
            }
            _ => {}
        }
        matches!(
            self,
            NodeFailure::WrongPassword
                | NodeFailure::NoPassword
                | NodeFailure::ProtectedMode
                | NodeFailure::NoPermission { .. }
                | NodeFailure::BadDatabase
                | NodeFailure::TooOld { .. }
                | NodeFailure::NotAtomic { .. }
                | NodeFailure::MultiMaster
                | NodeFailure::Replica
                | NodeFailure::Sentinel
                | NodeFailure::TwoMasters { .. }
                | NodeFailure::UnknownMaster { .. }
                | NodeFailure::SentinelPassword
                | NodeFailure::ClusterNode
                | NodeFailure::NoCluster
                | NodeFailure::Evicts { .. }
                | NodeFailure::Disqualified { .. }
                | NodeFailure::RecordChanged
                | NodeFailure::QuarantineDiffers { .. }
                | NodeFailure::OutOfMemory
                | NodeFailure::WritesRefused { .. }
                | NodeFailure::Protocol { .. }
                | NodeFailure::Refused { .. }
        )
    }
}

/// What one server of a node of [several](crate::guide::sentinel_and_cluster), or one of its sentinels, said when it was
/// asked which is the master.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct MemberReport {
    /// Its host and port, as in the node's URL; without user and password.
    pub address: Arc<str>,
    /// What it said.
    pub answer: MemberAnswer,
}

/// See [`MemberReport`].
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum MemberAnswer {
    /// A server: that it is the master.
    Master,
    /// A server: that it is a replica.
    Replica,
    /// A sentinel: where the master is.
    Named {
        /// The master's host, as the sentinels call it.
        host: String,
        /// Its port.
        port: u16,
        /// The number of the configuration that says so. Each failover has a larger one (`config-epoch`).
        epoch: u64,
    },
    /// A sentinel: that it knows no master of that name.
    UnknownMaster,
    /// It could not be asked, or said something else.
    Failed(NodeFailure),
}

impl MemberReport {
    pub(crate) fn new(address: Arc<str>, answer: MemberAnswer) -> MemberReport {
        MemberReport { address, answer }
    }
}

impl fmt::Display for MemberReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.address)?;
        match &self.answer {
            MemberAnswer::Master => f.write_str("the master"),
            MemberAnswer::Replica => f.write_str("a replica"),
            MemberAnswer::Named { host, port, epoch } => write!(f, "{host}:{port} by configuration {epoch}"),
            MemberAnswer::UnknownMaster => f.write_str("knows no such master"),
            MemberAnswer::Failed(failure) => failure.fmt(f),
        }
    }
}

/// Those in one line.
struct MemberList<'a>(&'a [MemberReport]);

impl fmt::Display for MemberList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, it) in self.0.iter().enumerate() {
            write!(f, "{}{it}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}
