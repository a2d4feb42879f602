//! Why a node could not vote.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::error::finding::NodeFinding;
use crate::error::tls_failure::TlsFailure;
use crate::ids::NodeId;
use crate::time::{About, Exactly};

/// A name in front of a message about its key.
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
        "no lock data, so the server is new or was restarted without its data; wait, or vouch for \
         it if it is new and nobody holds a lock"
    )]
    New,
    /// It was restarted, promoted, restored from a snapshot or replaced; or its data were swapped.
    #[error(
        "the server was restarted, promoted, restored or swapped, and may have lost held \
         locks; wait until its quarantine is over"
    )]
    Restarted,
    /// It lost its data while it was running.
    #[error("the server lost its data, and held locks with it; wait until its quarantine is over")]
    Emptied,
    /// Its clock was stepped forward, so locks expired early.
    #[error(
        "its clock was set forward, so held locks have expired there; wait until its quarantine is \
         over, and let its time daemon slew the clock"
    )]
    ClockStep,
    /// It hides its run id, so it may have been restarted before every connection.
    #[error(
        "it hides its run ID, and may have been restarted before this connection; wait until its \
         quarantine is over, and permit INFO: see the ACL line in the guide"
    )]
    Unverifiable,
}

const MANAGER_WITHOUT: &str = "other programs use it with quarantine, and this one without; enable \
    quarantine here, or use dedicated servers";
const SERVER_WITHOUT: &str = "other programs use it without quarantine, so it may grant held \
    locks; disable quarantine here if the servers are for tests, or empty the server, with all its \
    locks, while no such program runs";

/// Why a node did not count, and what to do.
///
/// Server text is cut to one line and escaped, and long hex numbers are shortened, because servers
/// echo arguments. Messages during the login are never shown, because servers echo passwords.
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
        /// Message of the system.
        reason: String,
    },
    /// The connection ended before the answer came.
    #[error("connection lost: {reason}")]
    Disconnected {
        /// Message of the system.
        reason: String,
    },
    /// TLS failed, or the server requires it.
    #[error("TLS: {0}")]
    Tls(TlsFailure),
    /// The login was refused, or the server's access list forbids a command or a key.
    #[error("{reason}")]
    Access {
        /// What is missing; and, behind a semicolon, what to do.
        reason: Cow<'static, str>,
    },
    /// The server is still loading its data.
    #[error("loading its data")]
    Loading,
    /// The server is unsuitable as it is, or as it was given: another kind of server, a version
    /// that is too old, or settings by which two clients may get one lock.
    #[error("{reason}")]
    Unsuitable {
        /// What is in the way; and, behind a semicolon, what to do.
        reason: Cow<'static, str>,
    },
    /// The server is a replica. Only a primary counts.
    #[error(
        "a replica; give the address of a primary, or all servers as redis+replicated://host,host"
    )]
    Replica,
    /// The server was started, lost its data, or had its clock stepped forward a short while ago.
    /// It may have lost held locks, so its grants do not count until these have expired.
    ///
    /// See [`Builder::quarantine`](crate::Builder::quarantine).
    #[error("quarantined for {} more: {why}", About(*left))]
    Quarantined {
        /// Time left.
        left: Duration,
        /// Why, and what to do.
        why: QuarantineReason,
    },
    /// The server has a quarantine and this manager has none, or the other way round. The first
    /// user of a server decides for all.
    ///
    /// See [`Builder::quarantine`](crate::Builder::quarantine).
    #[error("{}", if *on_server { MANAGER_WITHOUT } else { SERVER_WITHOUT })]
    QuarantineDiffers {
        /// Whether the server has one.
        on_server: bool,
    },
    /// This manager's [`max_ttl`](crate::Builder::max_ttl) is longer than that of the server's
    /// record, so the quarantine there would be too short for its locks. The first program on a
    /// server decides; an operator [raises](crate::Admin::set_max_ttl) it.
    #[error(
        "its max_ttl is {} and that of this program is {}; raise it on all servers: quorlock \
         doctor --max-ttl {}s",
        Exactly(*.there), Exactly(*.here), .here.as_secs_f64()
    )]
    MaxTtl {
        /// The server's.
        there: Duration,
        /// This manager's.
        here: Duration,
    },
    /// The server's clock is behind the proposed fencing token by more than half of its quarantine.
    /// That clock is wrong, or the clocks of most servers are.
    #[error(
        "its clock and those of most servers are more than half a quarantine apart; correct the \
         wrong one"
    )]
    ClockBehind,
    /// A finding can cost a lock. Only with [`Builder::strict`](crate::Builder::strict); otherwise
    /// the server votes.
    #[error("{finding} (refused by Builder::strict)")]
    Disqualified {
        /// The finding, and what to do.
        finding: NodeFinding,
    },
    /// The server is out of memory, cannot persist writes, or has too few replicas for a write.
    #[error("{reason}")]
    WritesRefused {
        /// Which of these; and, behind a semicolon, what to do.
        reason: Cow<'static, str>,
    },
    /// The server is busy with a long script, or has no room for more clients.
    #[error("{reason}")]
    Busy {
        /// Which of these; and, behind a semicolon, what to do.
        reason: Cow<'static, str>,
    },
    /// Of a node whose [members](crate::guide::sentinel_and_cluster) name its server: too few name
    /// the same one, or the last answers are too old.
    #[error("{reason}")]
    NoPrimary {
        /// Which of these, with what each member answered.
        reason: Cow<'static, str>,
    },
    /// The server does not serve the locks' slot of its cluster: the slot is moving or has moved,
    /// or nobody serves it.
    #[error(
        "the slot of the locks is not served: {message}; see CLUSTER INFO and CLUSTER SLOTS there"
    )]
    SlotNotServed {
        /// Text from the server.
        message: String,
    },
    /// The lock's name is in use: its key, or a key beside it, holds a value of another type or a
    /// fencing counter that is not a number below 2^53.
    #[error("{}{what}", Of(name))]
    KeyInUse {
        /// The name, for a lock of [several names](crate::LockManager::multi_lock); otherwise
        /// `None`.
        name: Option<Arc<str>>,
        /// What is wrong with the value.
        what: &'static str,
    },
    /// Another configured node shows the same run id: it is the same server process, or one of them
    /// pretends to be the other. The two have one vote. The other node has it while it is
    /// connected, and for the longest ttl after that.
    #[error("the same server as {other}; every node must be a server of its own")]
    SameServer {
        /// The node with the vote.
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
        /// Message of the server.
        message: String,
    },
    /// The manager is shutting down.
    #[error("shut down")]
    ShutDown,
    /// A bug in this crate: the node's thread panicked. Please report it.
    #[error("internal error, see the log")]
    Internal,
}

impl NodeFailure {
    pub(crate) const WRONG_PASSWORD: NodeFailure =
        NodeFailure::access("login refused; check user and password");
    pub(crate) const NO_PASSWORD: NodeFailure =
        NodeFailure::access("a password is required, and none was given; give user and password");
    pub(crate) const SENTINEL: NodeFailure = NodeFailure::unsuitable(
        "a Sentinel, which stores nothing; give the address of a primary, or \
         redis+sentinel://host,host/NAME",
    );
    pub(crate) const PROXY: NodeFailure = NodeFailure::unsuitable(
        "a proxy, or a server without INFO; give the address of the server behind it, and enable \
         this command",
    );
    pub(crate) const CLUSTER_NODE: NodeFailure = NodeFailure::unsuitable(
        "part of a cluster; give redis+cluster://host,host and a hash tag in the prefix, or an \
         independent server",
    );
    pub(crate) const NO_CLUSTER: NodeFailure =
        NodeFailure::unsuitable("not part of a cluster; give it as redis://host");
    pub(crate) const MULTI_MASTER: NodeFailure = NodeFailure::unsuitable(
        "an active replica, so another server grants the same locks; disable active-replica, or \
         use dedicated servers",
    );
    pub(crate) const SEVERAL: NodeFailure = NodeFailure::unsuitable(
        "several servers by turns, as behind a balancer or a ClusterIP service; give each server \
         an address of its own",
    );
    /// In [`NodeFailure::KeyInUse`].
    pub(crate) const ANOTHER_TYPE: &str = "the key holds another type";
    pub(crate) const BAD_COUNTER: &str = "the fencing counter holds nonsense";
    pub(crate) const UNCONFIRMED: NodeFailure = NodeFailure::NoPrimary {
        reason: Cow::Borrowed("its members name another primary, or none named it shortly before"),
    };

    /// With a fixed text.
    pub(crate) const fn access(reason: &'static str) -> NodeFailure {
        NodeFailure::Access {
            reason: Cow::Borrowed(reason),
        }
    }

    pub(crate) fn evicts(policy: &str) -> NodeFailure {
        let reason = format!(
            "may evict locks that are held, as its maxmemory-policy is {policy}; CONFIG SET \
             maxmemory-policy noeviction, and the same in its configuration file"
        );
        NodeFailure::Unsuitable {
            reason: reason.into(),
        }
    }

    pub(crate) const fn unsuitable(reason: &'static str) -> NodeFailure {
        NodeFailure::Unsuitable {
            reason: Cow::Borrowed(reason),
        }
    }

    /// The text before any detail: the same for all failures of one kind.
    pub(crate) fn kind(&self) -> String {
        let text = self.to_string();
        let kind = text.trim_start_matches("TLS: ").split([':', ';']).next();
        let kind = kind.unwrap_or_default().chars();
        kind.filter(|it| !it.is_ascii_digit()).collect()
    }

    pub(crate) fn protocol(reason: impl Into<String>) -> NodeFailure {
        NodeFailure::Protocol {
            reason: reason.into(),
        }
    }

    /// The answer belongs to another command.
    pub(crate) fn of_another_command() -> NodeFailure {
        NodeFailure::protocol("an answer to another command")
    }

    /// Whether access needs a change of settings, on the server or here: waiting does not help.
    pub(crate) fn is_of_access(&self) -> bool {
        matches!(
            self,
            NodeFailure::Access { .. }
                | NodeFailure::Unsuitable { .. }
                | NodeFailure::QuarantineDiffers { .. }
                | NodeFailure::MaxTtl { .. }
        )
    }

    /// Whether it lasts until somebody changes the server, its settings or the address: the log
    /// warns of it.
    pub(crate) fn needs_somebody(&self) -> bool {
        if let NodeFailure::Tls(failure) = self {
            return failure.needs_somebody();
        }
        matches!(
            self,
            NodeFailure::Access { .. }
                | NodeFailure::Unsuitable { .. }
                | NodeFailure::Replica
                | NodeFailure::SlotNotServed { .. }
                | NodeFailure::SameServer { .. }
                | NodeFailure::Disqualified { .. }
                | NodeFailure::QuarantineDiffers { .. }
                | NodeFailure::MaxTtl { .. }
                | NodeFailure::WritesRefused { .. }
                | NodeFailure::Protocol { .. }
                | NodeFailure::Refused { .. }
        )
    }
}
