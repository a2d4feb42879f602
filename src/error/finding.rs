//! Weaknesses of voting nodes.

use std::borrow::Cow;
use std::time::Duration;

use crate::time::About;

/// A weakness of a node that still counts. [`Builder::strict`](crate::Builder::strict) turns the
/// worst of them into [`NodeFailure::Disqualified`](crate::error::NodeFailure::Disqualified).
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeFinding {
    /// It would evict keys, and locks, if its memory were limited. With a limit it
    /// [does not count](crate::error::NodeFailure::Unsuitable).
    #[error(
        "would evict locks if its memory were limited, as its maxmemory-policy is {policy}; set it \
         to noeviction"
    )]
    WouldEvict {
        /// The server's `maxmemory-policy`.
        policy: String,
    },
    /// A promoted replica. Locks of the moments before the promotion may be missing.
    #[error(
        "was a replica and has been promoted, so locks of the moment before may be missing; give \
         the address of a server that never was a replica"
    )]
    Promoted,
    /// It has replicas. If one takes over its address, locks of the last moments are missing.
    #[error(
        "has replicas, {count} now; make sure none of them is ever promoted, or give the address \
         of a server without any"
    )]
    HasReplicas {
        /// How many.
        count: u64,
    },
    /// Its access list forbids `INFO`. So the manager cannot detect restarts, evictions, or a
    /// second node on the same server. With [quarantine](crate::Builder::quarantine) the node is
    /// quarantined at the beginning of every connection.
    #[error("forbids INFO, so it cannot be checked; see the ACL line in the guide")]
    Unverifiable,
    /// Other programs have [another number of servers](crate::guide::servers_change). One server
    /// more or less is a change of servers under way, and safe. With a larger difference two
    /// programs can hold the same lock.
    #[error(
        "other programs have {there} servers and this one has {here}{}",
        if .there.abs_diff(*.here) == 1 {
            "; finish this deployment before the next change of servers"
        } else {
            ": two programs can hold one lock; give all programs the same servers, and add or \
             remove one server per deployment"
        }
    )]
    OtherNodes {
        /// The number of servers of the programs that wrote the server's record.
        there: u64,
        /// The number of servers of this manager.
        here: u64,
    },
    /// Its clock differs from the one of this machine.
    #[error(
        "its clock is {} {} the one of this machine; run a time daemon on both",
        About(*.by), if *.ahead { "ahead of" } else { "behind" }
    )]
    ClockDiffers {
        /// By how much.
        by: Duration,
        /// Whether the node's clock is ahead.
        ahead: bool,
    },
    /// It does not support `ROLE`, unlike every Redis server: a proxy stands between, as in some
    /// managed services. A failover behind the proxy may keep our connection open, and two servers
    /// may answer on it.
    #[error(
        "does not know ROLE, so a proxy stands between that may fail over unseen; give the address \
         of a server itself"
    )]
    Proxied,
    /// It cannot announce releases, so waiting calls poll it.
    #[error(
        "announces no releases, as it does not speak RESP3; permit HELLO 3, or use Redis 6.2 or \
         newer"
    )]
    NoNotices,
    /// A command is missing that read-write locks need. The other locks work. See the [access
    /// list](crate::guide::redis_access). [`NodeCheck::is_fine`](crate::error::NodeCheck::is_fine)
    /// ignores this.
    #[error("read-write locks do not work in full: {reason}")]
    NoReaders {
        /// What is missing; and, behind a semicolon, what to do.
        reason: Cow<'static, str>,
    },
}

impl NodeFinding {
    /// Whether it can cost a lock: a strict manager gives such a node no vote.
    pub(crate) fn disqualifies(&self) -> bool {
        match self {
            NodeFinding::WouldEvict { .. }
            | NodeFinding::Promoted
            | NodeFinding::HasReplicas { .. }
            | NodeFinding::Unverifiable
            | NodeFinding::Proxied => true,
            NodeFinding::OtherNodes { there, here } => there.abs_diff(*here) != 1,
            NodeFinding::ClockDiffers { .. }
            | NodeFinding::NoNotices
            | NodeFinding::NoReaders { .. } => false,
        }
    }
}
