//! What a node can say: read by `wire`, counted by `logic`.

use std::sync::Arc;
use std::time::Duration;

use crate::error::NodeFailure;

/// What a node answered to one command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    Acquire(AcquireReply),
    Raise(RaiseReply),
    Extend(ExtendReply),
    Release(ReleaseReply),
    Greet(GreetReply),
    Meet(MeetReply),
    /// Releases are announced on this connection from now on.
    Subscribed,
    /// The node's time, and nothing else.
    Time,
    /// The script is not known there, and nothing was executed.
    NoScript,
    Failed(NodeFailure),
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum AcquireReply {
    Accepted,
    Behind {
        counter: u64,
    },
    Held {
        counter: u64,
        left: Option<Duration>,
        /// The client is in the waiting list now.
        entered: bool,
        /// Who holds it, fit to be shown.
        holder: Option<Arc<str>>,
    },
    /// Free, but another client's turn.
    Reserved {
        counter: u64,
        left: Duration,
        entered: bool,
    },
    /// The node has lost its memory, and is quarantined.
    Forgot {
        left: Duration,
    },
    /// The proposal is far ahead of the node's clock.
    Ahead {
        counter: u64,
    },
    WrongType,
    BadCounter,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RaiseReply {
    Taken,
    Above { counter: u64 },
    Gone,
    Unusable,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ExtendReply {
    Extended,
    /// It had been gone and was set again.
    Healed,
    /// Extended by a node that has forgotten what it knew, which does not count yet.
    Forgot {
        left: Duration,
    },
    Superseded,
    /// Not there.
    Gone,
    /// Someone else's.
    Taken,
    Unusable,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReleaseReply {
    Deleted,
    NotOurs,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct GreetReply {
    pub(crate) canary: Canary,
    /// For how long the server's process has been keeping what it was told.
    pub(crate) served: Duration,
    /// The longest quarantine that anybody asks for lately, in milliseconds.
    pub(crate) longest: u64,
    /// When that was last asked for: days since 1970.
    pub(crate) day: u64,
    /// The node has noted what it was told.
    pub(crate) kept: bool,
}

/// Which node it is, and who else uses it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MeetReply {
    /// None if the node could not note one.
    pub(crate) id: Option<u64>,
    /// How many nodes others use together with this one, if those are not ours; 0 if not.
    pub(crate) others: u64,
}

/// What a greeting found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Canary {
    /// Its process has kept it, and began with what another had kept.
    Kept,
    /// Its process has kept it, and began with nothing.
    KeptFromNothing,
    /// None.
    Missing,
    /// Another process had kept it.
    Another,
    /// Somebody has said that nothing was lost.
    Vouched,
}

/// What a server said about itself.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct ServerInfo {
    /// Changes with every start of the process. `None` if the access list forbids `INFO`.
    pub(crate) run_id: Option<String>,
    /// It can say something unasked on this connection: `RESP3`.
    pub(crate) pushes: bool,
    /// Whole seconds since its process was started, by its own wall clock.
    pub(crate) uptime: Option<i64>,
    /// Its wall clock: microseconds since 1970.
    pub(crate) time: Option<u64>,
    /// What to do when memory is full, unless that is to refuse writes; it has no limit now.
    pub(crate) would_evict: Option<String>,
    /// It was a replica once and has been promoted.
    pub(crate) promoted: bool,
    /// How many replicas are connected to it.
    pub(crate) replicas: u64,
    /// Since when it remembers, if it was asked.
    pub(crate) memory: Option<GreetReply>,
}

impl ServerInfo {
    /// What a server is refused for by those who want to be strict.
    pub(crate) fn objection(&self) -> Option<NodeFailure> {
        if self.run_id.is_none() {
            Some(NodeFailure::Unverifiable)
        } else if self.promoted {
            Some(NodeFailure::Promoted)
        } else if self.replicas != 0 {
            Some(NodeFailure::HasReplicas { count: self.replicas })
        } else {
            self.would_evict.clone().map(|policy| NodeFailure::Evicts { policy })
        }
    }
}
