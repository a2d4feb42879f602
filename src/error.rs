//! What can go wrong: one error type per operation, with a row per node.
//!
//! The error types stand at the root of the crate as well, and the rows stand here.
//! [`AcquireError::kind`] is for code: try again, give up, or raise an alert.

mod finding;
mod node_failure;
mod report;
mod tls_failure;

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;

pub use finding::NodeFinding;
pub use node_failure::{NodeFailure, QuarantineReason};
pub use report::{NodeAnswer, NodeCheck, NodeReport};
pub use tls_failure::TlsFailure;

use crate::ids::LockName;
use crate::time::{About, Exactly};
pub(crate) use report::Rows;
use report::joined;

/// Text of a system error, without its number.
pub(crate) fn reason(err: &io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or(&text)
        .to_lowercase()
}

/// The end of a connection with this error.
pub(crate) fn disconnected(err: &io::Error) -> NodeFailure {
    match err.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(failure) => NodeFailure::Tls(TlsFailure::clone(failure)),
        None => NodeFailure::Disconnected {
            reason: reason(err),
        },
    }
}

/// Why a manager was not built: all problems of its settings at once.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("cannot build the lock manager: {}", joined(problems, "; "))]
pub struct BuildError {
    pub(crate) problems: Vec<BuildProblem>,
}

impl BuildError {
    /// All problems that were found; never empty.
    #[must_use]
    pub fn problems(&self) -> &[BuildProblem] {
        &self.problems
    }
}

/// One problem of a setting, and what is allowed.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum BuildProblem {
    /// The list of nodes is empty.
    #[error("no nodes: specify at least one Redis URL (three or five recommended)")]
    NoNodes,
    /// The list of nodes is too long.
    #[error(
        "{count} nodes: at most {max} are supported; more than seven make locks slower, not safer"
    )]
    TooManyNodes {
        /// How many were given.
        count: usize,
        /// How many are allowed.
        max: usize,
    },
    /// The URL of a node is invalid. The message omits the URL, which may contain a password.
    #[error("node {index}: {reason}")]
    BadAddress {
        /// The node's place in the list, from 0.
        index: usize,
        /// The reason, without secrets.
        reason: String,
    },
    /// Two entries are the same server, whose grant would count twice.
    #[error(
        "nodes {first} and {second} are the same server ({address}): every node must be a server \
         of its own"
    )]
    DuplicateNode {
        /// The first entry's place in the list, from 0.
        first: usize,
        /// The second entry's place in the list, from 0.
        second: usize,
        /// The address of both.
        address: String,
    },
    /// An option is out of its range, or contradicts another one.
    #[error("{option} {reason}")]
    BadOption {
        /// The method of [`Builder`](crate::Builder), or `ttl` of one lock.
        option: &'static str,
        /// The value, and what is allowed.
        reason: String,
    },
    /// The TLS options cannot be used.
    #[error("TLS: {reason}")]
    Tls {
        /// The reason, without secrets.
        reason: String,
    },
    /// The system refused a thread or a file descriptor.
    #[error("cannot start the node threads: {reason}")]
    NoThreads {
        /// The message of the system.
        reason: String,
    },
}

/// Why a lock was not acquired.
///
/// After an error nothing of the call stays on reachable nodes. On an unreachable node a key may
/// stay for one ttl. Match [`kind`](AcquireError::kind) to decide what to do.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
#[doc(alias = "LockError")]
pub enum AcquireError {
    /// A majority votes, and another program, thread, or this thread holds the lock. Normal
    /// operation, except for [this thread](HeldBy::ThisThread).
    #[error("{name:?}: held by {by} (waited {}){}", About(*waited), InTheWay(*by, nodes))]
    Held {
        /// The name of the lock.
        name: LockName,
        /// The holder, from the view of this manager.
        by: HeldBy,
        /// The answers of the nodes in the last round.
        nodes: Vec<NodeReport>,
        /// How long the call waited.
        waited: Duration,
    },
    /// Too many nodes failed to decide who holds the lock.
    #[error("{name:?}: no majority of nodes after {}: {}", About(*waited), Rows(nodes))]
    NoQuorum {
        /// The name of the lock.
        name: LockName,
        /// The answers of the nodes in the last round.
        nodes: Vec<NodeReport>,
        /// How long the call tried.
        waited: Duration,
    },
    /// This process has more calls under way than the nodes answer in time, and the call did not
    /// get its turn. Nothing was sent. Use fewer threads, or wait longer.
    #[error(
        "{name:?}: busy: this process has more calls under way than the nodes answer in time \
         (waited {}): use fewer threads, or wait longer",
        About(*waited)
    )]
    Busy {
        /// The name of the lock.
        name: LockName,
        /// How long the call waited for its turn.
        waited: Duration,
    },
    /// A majority granted the lock too late: nothing usable of its ttl was left. It was released.
    #[error(
        "{name:?}: granted too late: the round took {} of a ttl of {}; the nodes or this machine \
         are too slow",
        About(*took), Exactly(*ttl)
    )]
    TooLate {
        /// The name of the lock.
        name: LockName,
        /// How long the last round took.
        took: Duration,
        /// The requested ttl.
        ttl: Duration,
    },
    /// On too many nodes the key or the fencing counter holds something else than a lock.
    #[error(
        "{name:?}: the key is in use for something that is not a lock: {}",
        Rows(nodes)
    )]
    KeyInUse {
        /// The name of the lock.
        name: LockName,
        /// The answers of the nodes in the last round.
        nodes: Vec<NodeReport>,
    },
    /// The call was cancelled by its [`CancelHandle`](crate::CancelHandle).
    #[error("cancelled")]
    Cancelled,
    /// The manager has been shut down.
    #[error("the lock manager has been shut down")]
    ShutDown,
    /// This process is a fork of the one that built the manager and has none of its threads.
    #[error("the lock manager belongs to the parent process: build one after the fork")]
    Forked,
    /// The name, or all names together, are too long.
    #[error(
        "the name has {len} bytes with its prefix, or all names together: at most {max} are allowed"
    )]
    NameTooLong {
        /// Bytes of prefix and name, or of all names.
        len: usize,
        /// The largest allowed, in bytes.
        max: usize,
    },
    /// The list of names is empty.
    #[error("no names: give at least one")]
    NoNames,
    /// The list of names is too long.
    #[error("{count} names: at most {max} can be taken together")]
    TooManyNames {
        /// The number of different names.
        count: usize,
        /// How many are allowed.
        max: usize,
    },
    /// A semaphore without permits, or with too many.
    #[error("a semaphore of {permits} permits: allowed are 1 to {max}")]
    BadPermits {
        /// The requested number.
        permits: usize,
        /// The largest allowed.
        max: usize,
    },
    /// The name begins like the internal keys of this crate.
    #[error(
        "names that begin with \"quorlock:\" are reserved: they are the keys of fencing counters \
         and waiting lists"
    )]
    NameReserved,
    /// The ttl of this lock is not allowed under the manager's settings.
    #[error(transparent)]
    BadTtl(BuildProblem),
    /// This thread still has guards of a lost hold of this [reentrant](crate::ReentrantMutex) lock.
    /// Drop them first.
    #[error("{lost}; drop the guards of this thread first")]
    HoldLost {
        /// How the hold was lost.
        lost: Lost,
    },
    /// A [reentrant](crate::ReentrantMutex) lock was taken in the destructor of a thread-local
    /// value, too late in the life of the thread.
    #[error("the thread is ending and can no longer take reentrant locks")]
    ThreadEnding,
    /// The operating system provided no random bytes for the owner token.
    #[error("no random bytes from the operating system: {reason}")]
    NoRandomness {
        /// The message of the system.
        reason: String,
    },
}

/// Who holds a lock that was not acquired, from the view of the call. [`NodeAnswer::Held`] has the
/// view of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum HeldBy {
    /// Another manager or client, or the lock had just changed hands.
    Other,
    /// Another thread, by this manager. For a semaphore: one of the permits.
    ThisProcess,
    /// The calling thread itself. If it still has the guard, it waited for itself: drop the guard
    /// first, or take a mutex as a [reentrant](crate::LockManager::reentrant_mutex) one. It may
    /// have passed the guard to another thread. For a semaphore: the calling thread took one of the
    /// permits.
    ThisThread,
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HeldBy::Other => "someone else",
            HeldBy::ThisProcess => "this process, by another thread",
            HeldBy::ThisThread => "this process, taken by this thread",
        })
    }
}

/// What to do about it, and the answers of the nodes, if any.
struct InTheWay<'a>(HeldBy, &'a [NodeReport]);

impl fmt::Display for InTheWay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InTheWay(by, nodes) = *self;
        let asked = nodes.iter().any(|it| it.answer != NodeAnswer::NotAsked);
        match by {
            HeldBy::ThisThread => f.write_str(": drop its guard first")?,
            HeldBy::Other if !asked => f.write_str(": other calls of this process came first")?,
            HeldBy::Other | HeldBy::ThisProcess => {}
        }
        if asked {
            let between = if by == HeldBy::ThisThread { "; " } else { ": " };
            write!(f, "{between}{}", Rows(nodes))?;
        }
        Ok(())
    }
}

impl AcquireError {
    /// Whether this is ordinary contention: someone else holds the lock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self, AcquireError::Held { .. })
    }

    /// What each node answered in the last round; empty if the call ended without one.
    #[must_use]
    pub fn nodes(&self) -> &[NodeReport] {
        match self {
            AcquireError::Held { nodes, .. }
            | AcquireError::NoQuorum { nodes, .. }
            | AcquireError::KeyInUse { nodes, .. } => nodes,
            _ => &[],
        }
    }
}

/// What to do about an [`AcquireError`]: [`AcquireError::kind`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Someone else holds the lock. Expected: try again later, or leave the work to the holder.
    Yield,
    /// Too few nodes answered in time, or this process is overloaded. Try again; raise an alert if
    /// it lasts.
    Retry,
    /// Too many nodes are [quarantined](crate::Builder::quarantine). It ends by itself: try again
    /// later, or call `lock`.
    Wait,
    /// Settings, a name, or a server must be changed first. Retries do not help: raise an alert.
    Fix,
    /// The call was cancelled or the manager was shut down. The program is ending: end with it.
    Stop,
    /// A mistake in the program, or the system has no resources: a forked process, guards of a lost
    /// reentrant hold. Report it.
    Report,
}

/// A lock that was lost while its guard still existed.
///
/// In every case stop the protected work, or let its storage check the
/// [fencing token](crate::LockGuard::fencing_token).
///
/// # Examples
///
/// ```
/// use quorlock::{LockName, Lost, LostReason};
///
/// // For a test of your own.
/// let lost = Lost {
///     name: LockName::new(b"report"),
///     reason: LostReason::MaxHold,
/// };
/// assert_eq!(lost.to_string(), r#""report": lock lost: held for the maximum time"#);
/// ```
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{name:?}: {reason}")]
pub struct Lost {
    /// The name of the lock, as in [`Hold::name`](crate::Hold::name).
    pub name: LockName,
    /// How it was lost.
    pub reason: LostReason,
}

/// Why a round of an acquisition did not get its lock.
#[derive(Clone, Copy, Debug, Eq, Error, Hash, PartialEq)]
#[non_exhaustive]
pub enum RoundLoss {
    /// A majority votes. Somebody else holds the lock, or several calls split the nodes between
    /// them.
    #[error("held")]
    Held,
    /// Too few nodes vote for any majority.
    #[error("no quorum")]
    NoQuorum,
    /// The answers came after the usable part of the ttl.
    #[error("too late")]
    TooLate,
    /// Too many nodes hold another value than a lock.
    #[error("key in use")]
    KeyInUse,
    /// Another call moved the fencing counters during the raise. The lock is free or about to be.
    #[error("overtaken")]
    Overtaken,
}

/// How a lock was lost: [`Lost::reason`].
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum LostReason {
    /// No majority confirmed an extension in time: nodes failed, or this process or machine was
    /// paused.
    #[error("lock lost: no majority of nodes extended it in time")]
    Expired,
    /// Too many nodes reported that the key is gone or someone else's.
    #[error("lock lost: too many nodes no longer hold it")]
    Gone,
    /// The clock of a node was stepped forward, so the lock may have expired there early, and too
    /// few other nodes confirmed it.
    #[error("lock lost: the clock of a node was set forward, and too few others hold it")]
    NodeClock,
    /// The [maximum hold](crate::Builder::max_hold) was reached.
    #[error("lock lost: held for the maximum time")]
    MaxHold,
    /// The lock had no renewal, and its ttl is over.
    #[error("lock lost: its fixed lease is over")]
    LeaseOver,
    /// The manager was shut down.
    #[error("lock lost: the lock manager was shut down")]
    ShutDown,
    /// This process is a fork of the holder.
    #[error("lock not held: it belongs to the parent process")]
    Forked,
}

/// Why a lock was not extended.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock was lost, before or now.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// No majority confirmed. The lock is still held until its previous end.
    #[error("not extended, no majority confirmed: {}", Rows(nodes))]
    NoQuorum {
        /// The answer of each node.
        nodes: Vec<NodeReport>,
    },
    /// The ttl is not allowed under the manager's settings.
    #[error(transparent)]
    BadTtl(BuildProblem),
}

/// A release that a majority of the nodes confirmed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Released {
    /// Nodes that had confirmed when the call returned. The command went to the others too. For a
    /// lock that [stays](crate::Hold::keep_for): nodes that confirmed the lock before.
    pub confirmed: usize,
    /// All nodes of the manager.
    pub nodes: usize,
}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "released: a majority has confirmed, {} of {} nodes so far",
            self.confirmed, self.nodes
        )
    }
}

/// Why a release was not a success.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lock was lost before the release, or the release found it gone: the work was not
    /// protected to its end.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// No majority confirmed within the response timeout. The release stays queued for the other
    /// nodes. Where it never arrives, the key expires within one ttl.
    #[error("release not confirmed: {confirmed} of {} nodes confirmed: \
        {}", nodes.len(), Rows(nodes))]
    NotConfirmed {
        /// The number of confirming nodes.
        confirmed: usize,
        /// The answer of each node.
        nodes: Vec<NodeReport>,
    },
}

/// Why [`with`](crate::Mutex::with), [`read_with`](crate::RwLock::read_with) or
/// [`write_with`](crate::RwLock::write_with) failed.
///
/// Independent of the closure's value, so that `?` takes it in every function that returns a boxed
/// error.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum WithError {
    /// The lock was not acquired, and the closure was not called.
    #[error("{0}")]
    NotAcquired(#[from] AcquireError),
    /// The closure ran to its end, but the lock was lost before that: another holder may have been
    /// at work too. The closure's value is dropped.
    #[error("{0}")]
    Lost(#[from] Lost),
}
