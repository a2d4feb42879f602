//! What can go wrong: one error type per operation, with a row per node.
//!
//! The error types stand at the root of the crate as well, and the rows stand here. [`AcquireError::kind`] answers the question
//! that code asks of an error: try again, give up, or wake somebody.

mod check;
mod error_kind;
mod finding;
mod node;
mod report;
mod tls;

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;

pub use check::{NodeAccess, NodeCheck, ServerSet};
pub use error_kind::ErrorKind;
pub use finding::NodeFinding;
pub use node::{MemberAnswer, MemberReport, NodeFailure, QuarantineReason};
pub use report::{NodeAnswer, NodeReport};
pub use tls::TlsFailure;

use crate::time::{About, Exactly};
pub(crate) use node::FailureKind;
pub(crate) use report::Rows;

/// What the system says of an error, without its number.
pub(crate) fn reason(err: &io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// Why a manager was not built: everything that is wrong with its settings, at once.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildError {
    problems: Vec<BuildProblem>,
}

impl BuildError {
    pub(crate) fn of(problems: Vec<BuildProblem>) -> BuildError {
        BuildError { problems }
    }

    /// All problems that were found; never empty.
    #[must_use]
    pub fn problems(&self) -> &[BuildProblem] {
        &self.problems
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot build the lock manager: ")?;
        write_list(f, &self.problems, "; ")
    }
}

impl std::error::Error for BuildError {}

/// One thing that is wrong with a setting, and what is allowed.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum BuildProblem {
    /// The list of nodes is empty.
    #[error("no nodes: give the URL of at least one Redis server, better of three or five")]
    NoNodes,
    /// The list of nodes is too long.
    #[error("{count} nodes: at most {max} are supported; more than seven make a lock slower, not safer")]
    TooManyNodes {
        /// How many were given.
        count: usize,
        /// How many are allowed.
        max: usize,
    },
    /// A node's URL cannot be used. The URL is not repeated, because it may hold a password.
    #[error("node {index}: {reason}")]
    BadAddress {
        /// The node's place in the list, from 0.
        index: usize,
        /// What is wrong, without secrets.
        reason: String,
    },
    /// Two entries of the list are the same server, so that its vote would count twice.
    #[error("nodes {first} and {second} are the same server ({address}): every node must be a server of its own")]
    DuplicateNode {
        /// The first entry's place in the list, from 0.
        first: usize,
        /// The second entry's place in the list, from 0.
        second: usize,
        /// The address of both.
        address: String,
    },
    /// A duration is outside its range.
    #[error("{option} is {}: allowed are {} to {}", Exactly(*value), Exactly(*min), Exactly(*max))]
    OutOfRange {
        /// The name of the option.
        option: &'static str,
        /// The value that was given.
        value: Duration,
        /// The smallest allowed.
        min: Duration,
        /// The largest allowed.
        max: Duration,
    },
    /// The ttl leaves no time for a second try when a node does not answer.
    #[error(
        "ttl is {}: with a response timeout of {} it must be at least {}, \
         so that a renewal can be tried again before the lock is lost",
        Exactly(*ttl), Exactly(*response_timeout), Exactly(*needed)
    )]
    TtlBelowTimeouts {
        /// The ttl that was given.
        ttl: Duration,
        /// The response timeout that was given.
        response_timeout: Duration,
        /// The smallest ttl for that response timeout.
        needed: Duration,
    },
    /// The ttl is longer than the longest that a node which has forgotten its locks waits for.
    #[error(
        "ttl is {}, above max_ttl, which is {}: raise max_ttl, in all programs that use these locks",
        Exactly(*ttl), Exactly(*max_ttl)
    )]
    TtlAboveMax {
        /// The ttl that was given.
        ttl: Duration,
        /// The largest allowed; the manager's ttl if it was not set.
        max_ttl: Duration,
    },
    /// Fencing counters would expire soon after a lock that was not renewed, or even before it.
    ///
    /// See [`Builder::fencing_ttl`](crate::Builder::fencing_ttl).
    #[error(
        "fencing_ttl is {}: with locks of up to {} it must be at least {}, or counters are gone when \
         the next holder comes: raise fencing_ttl, or set it to None, or lower the ttl",
        Exactly(*fencing_ttl), Exactly(*ttl), Exactly(*needed)
    )]
    FencingTtlTooShort {
        /// The ttl of counters that was given.
        fencing_ttl: Duration,
        /// The longest ttl of a lock, which it has to outlast.
        ttl: Duration,
        /// The shortest ttl of counters for that one.
        needed: Duration,
    },
    /// The margin for clock drift takes more than half of the ttl.
    #[error(
        "the margin for clock drift is {} of a ttl of {}: at most half of the ttl is allowed",
        About(*margin), Exactly(*ttl)
    )]
    MarginTooLarge {
        /// The ttl.
        ttl: Duration,
        /// The margin of that ttl.
        margin: Duration,
    },
    /// The margin's share of the ttl is not a sensible number.
    #[error("the margin's share of the ttl is {share}: allowed are 0 to {max}")]
    MarginShare {
        /// The share that was given.
        share: f64,
        /// The largest allowed.
        max: f64,
    },
    /// The maximum hold is shorter than one ttl.
    #[error("the maximum hold is {}: it must be at least the ttl, {}, or None", Exactly(*max_hold), Exactly(*ttl))]
    MaxHoldBelowTtl {
        /// The maximum hold that was given.
        max_hold: Duration,
        /// The ttl.
        ttl: Duration,
    },
    /// The shortest retry delay is longer than the longest.
    #[error(
        "the retry delay goes from {} to {}: the first must not be longer than the second",
        Exactly(*shortest), Exactly(*longest)
    )]
    RetryDelays {
        /// The shortest delay that was given.
        shortest: Duration,
        /// The longest delay that was given.
        longest: Duration,
    },
    /// The key prefix is too long.
    #[error("the key prefix has {len} bytes: at most {max} are allowed")]
    PrefixTooLong {
        /// The length that was given, in bytes.
        len: usize,
        /// The largest allowed, in bytes.
        max: usize,
    },
    /// What was given for TLS cannot be used.
    #[error("TLS: {reason}")]
    Tls {
        /// What is wrong with it, without secrets.
        reason: String,
    },
    /// The system did not give a thread or a descriptor for waiting.
    #[error("cannot start the node threads: {reason}")]
    NoThreads {
        /// What the system said.
        reason: String,
    },
}

/// Why a lock was not acquired.
///
/// After any of these, nothing of the call is left on a node that can be reached; on one that cannot, a key may stay
/// for at most one ttl.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AcquireError {
    /// Someone else holds the lock, or another thread, or this one. Expected in normal operation; not worth an alert,
    /// unless it is [this thread](HeldBy::ThisThread).
    #[error("held by {by} (waited {}){}", About(*waited), InTheWay(*by, nodes))]
    Held {
        /// Whether it is this manager that holds it, as far as that is known here.
        by: HeldBy,
        /// What each node answered in the last round.
        nodes: Vec<NodeReport>,
        /// How long the call waited before it gave up.
        waited: Duration,
    },
    /// Too many nodes failed, so nobody can know who holds the lock.
    #[error("no quorum (tried for {}): {}", About(*waited), Rows(nodes))]
    NoQuorum {
        /// What each node answered in the last round.
        nodes: Vec<NodeReport>,
        /// How long the call tried before it gave up.
        waited: Duration,
    },
    /// This manager has more calls under way than the nodes answer in time, and the call's turn to ask them did not come.
    /// No node was asked. Use fewer threads, or wait for longer.
    #[error(
        "busy: this process has more calls under way than the nodes answer in time (waited {}): use fewer threads, or wait \
         for longer",
        About(*waited)
    )]
    Busy {
        /// How long the call waited for its turn.
        waited: Duration,
    },
    /// A majority granted the lock, but so late that nothing usable of its ttl was left. It was given back.
    #[error(
        "granted too late: the round took {} of a ttl of {}; the nodes or this machine are too slow",
        About(*took), Exactly(*ttl)
    )]
    TooLate {
        /// How long the last round took.
        took: Duration,
        /// The ttl that was asked for.
        ttl: Duration,
    },
    /// On too many nodes the lock's key, or the fencing counter beside it, holds something that is not a lock.
    #[error("the key is in use for something that is not a lock: {}", Rows(nodes))]
    KeyInUse {
        /// What each node answered in the last round.
        nodes: Vec<NodeReport>,
    },
    /// The call was cancelled by its [`CancelHandle`](crate::CancelHandle).
    #[error("cancelled after {}", About(*waited))]
    Cancelled {
        /// How long the call had waited.
        waited: Duration,
    },
    /// The manager has been shut down.
    #[error("the lock manager has been shut down")]
    ShutDown,
    /// This process was forked from the one that built the manager, and has none of its threads.
    #[error("the lock manager belongs to the parent process: build one after the fork")]
    Forked,
    /// The name is too long to be a key, or several names are together.
    #[error("the name has {len} bytes with its prefix, or all names together: at most {max} are allowed")]
    NameTooLong {
        /// Length of prefix and name, in bytes; of several names, of all of them.
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
        /// How many different names were given.
        count: usize,
        /// How many are allowed.
        max: usize,
    },
    /// A node is a Redis Cluster (`redis+cluster://`), which takes several names together only if they are in one slot of it.
    #[error(
        "the names are in different slots of a cluster: give them one in braces, such as {{order}}:a and {{order}}:b, which \
         is what is hashed then"
    )]
    SeveralSlots,
    /// A semaphore of no permits, or of too many.
    #[error("a semaphore of {permits} permits: allowed are 1 to {max}")]
    BadPermits {
        /// How many were asked for.
        permits: usize,
        /// The largest allowed.
        max: usize,
    },
    /// The name begins like the keys that this crate keeps beside the locks.
    #[error(
        "names that begin with \"quorlock:\" are reserved: they are the keys of fencing counters and waiting lists"
    )]
    NameReserved,
    /// The ttl of this lock is not allowed under the manager's settings.
    #[error(transparent)]
    BadTtl(BuildProblem),
    /// This thread has guards of a hold of this [reentrant](crate::ReentrantMutex) lock that was lost. Drop them, and the
    /// lock can be taken again.
    #[error("this thread still has guards of a hold that was lost, drop them first: {lost}")]
    HoldLost {
        /// How the hold was lost.
        lost: Lost,
    },
    /// This thread has as many guards of the [reentrant](crate::ReentrantMutex) lock as can be counted.
    #[error("this thread holds the lock {max} times already, as often as can be counted")]
    TooManyHolds {
        /// The largest allowed.
        max: u32,
    },
    /// A [reentrant](crate::ReentrantMutex) lock was taken in the destructor of a thread-local value, when the list of
    /// what this thread holds was gone already.
    #[error("the thread is ending, and has no list any more of the reentrant locks it holds")]
    ThreadEnding,
    /// The operating system gave no random bytes for the owner token.
    #[error("no random bytes from the operating system: {reason}")]
    NoRandomness {
        /// What the system said.
        reason: String,
    },
}

/// Who holds a lock that was not acquired, seen from the call. On the nodes, [`NodeAnswer::Held`] says it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum HeldBy {
    /// Another manager, or another client. Or it had just changed hands.
    Other,
    /// This manager, for another thread. Of a semaphore: one of the permits.
    ThisProcess,
    /// This manager, and the calling thread took it. If it has the guard still, it waited for itself: drop the guard first,
    /// or use a [reentrant mutex](crate::LockManager::reentrant_mutex). It may have given the guard to another thread. Of a
    /// semaphore: the calling thread took one of the permits.
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

/// What to do about it, and what the nodes said, unless none of them was asked.
struct InTheWay<'a>(HeldBy, &'a [NodeReport]);

impl fmt::Display for InTheWay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InTheWay(by, nodes) = *self;
        let asked = nodes.iter().any(|it| it.answer != NodeAnswer::NotAsked);
        match by {
            HeldBy::ThisThread => f.write_str(": drop its guard first, or use a reentrant mutex")?,
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
            | AcquireError::KeyInUse { nodes } => nodes,
            _ => &[],
        }
    }
}

/// How a lock was lost while its guard still existed.
///
/// Whatever the reason: stop the protected work, or let its storage check the
/// [fencing token](crate::LockGuard::fencing_token).
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Lost {
    /// No majority confirmed an extension before the lock's time had run out: nodes failed, or this process or
    /// machine was stopped.
    #[error("lock lost: no majority of nodes extended it in time")]
    Expired,
    /// Nodes that a majority cannot do without answered that the key is gone or someone else's.
    #[error("lock lost: too many nodes no longer hold it")]
    Gone,
    /// The clock of a node was set forward, so that the lock may have expired there early, and too few of the other nodes
    /// confirmed that they hold it.
    #[error("lock lost: the clock of a node was set forward, and too few others hold it")]
    NodeClock,
    /// The lock had been held for the [maximum hold](crate::Builder::max_hold) and was not extended any more.
    #[error("lock lost: held for the maximum time")]
    MaxHold,
    /// The lock was taken without renewal, and its ttl is over.
    #[error("lock lost: its fixed lease is over")]
    LeaseOver,
    /// The manager was shut down.
    #[error("lock lost: the lock manager was shut down")]
    ShutDown,
    /// This process was forked from the one that holds the lock.
    #[error("lock not held: it belongs to the parent process")]
    Forked,
}

/// Why a lock was not extended.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock had been lost before, or turned out to be.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// No majority confirmed. The lock is still held until the time it had before.
    #[error("not extended, no quorum: {}", Rows(nodes))]
    NoQuorum {
        /// What each node answered.
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
    /// Nodes that had confirmed when the call returned. The others were told as well, and the call did not wait.
    pub confirmed: usize,
    /// How many nodes the manager was built with.
    pub nodes: usize,
}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "released: a majority has confirmed, {} of {} nodes so far", self.confirmed, self.nodes)
    }
}

/// What a release has to report besides success.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lock had been lost before it was released, or the release found it gone: the protected work was not protected
    /// to its end.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// No majority confirmed within the response timeout. The release stays queued for the nodes that did not; where
    /// it never arrives, the key expires within one ttl.
    #[error("release not confirmed: {confirmed} of {} nodes confirmed: {}", nodes.len(), Rows(nodes))]
    NotConfirmed {
        /// How many nodes confirmed.
        confirmed: usize,
        /// What each node answered.
        nodes: Vec<NodeReport>,
    },
}

/// What went wrong with [`Mutex::with`](crate::Mutex::with), `run` of another kind, or
/// [`read_with`](crate::RwLock::read_with) or [`write_with`](crate::RwLock::write_with) of a read-write lock.
pub enum RunError<R> {
    /// The lock was not acquired, and the closure was not called.
    NotAcquired(AcquireError),
    /// The closure ran to its end, but the lock was lost before that: for part of the time it may not have been alone.
    Lost {
        /// How the lock was lost.
        lost: Lost,
        /// What the closure returned.
        value: R,
    },
}

impl<R> fmt::Display for RunError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::NotAcquired(err) => err.fmt(f),
            RunError::Lost { lost, .. } => lost.fmt(f),
        }
    }
}

impl<R> std::error::Error for RunError<R> {
    /// Why the lock was not acquired, or how it was lost. The message of a `RunError` says it as well.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RunError::NotAcquired(err) => Some(err),
            RunError::Lost { lost, .. } => Some(lost),
        }
    }
}

impl<R> From<AcquireError> for RunError<R> {
    fn from(err: AcquireError) -> RunError<R> {
        RunError::NotAcquired(err)
    }
}

// Not derived: the closure's value need not be `Debug`.
impl<R> fmt::Debug for RunError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::NotAcquired(err) => f.debug_tuple("NotAcquired").field(err).finish(),
            RunError::Lost { lost, .. } => f.debug_struct("Lost").field("lost", lost).finish_non_exhaustive(),
        }
    }
}

fn write_list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T], between: &str) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        if 0 < i {
            f.write_str(between)?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}
