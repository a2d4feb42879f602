//! Events, and who is told of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{AcquireError, Lost, NodeFailure, QuarantineReason};
use crate::ids::{FencingToken, LockName, NodeId};

/// The class of locks that were given none.
pub(super) const OTHER: &str = "other";

/// Is told what a manager does: for metrics, traces and records of one's own. See
/// [`Builder::observer`](crate::Builder::observer).
///
/// A closure that takes an `&Event` is one.
///
/// It is called with nothing of the manager locked: by the thread of yours that has done something, and for what the manager's
/// threads do or notice by one thread of its own, `quorlock-told`. So an observer that blocks delays the call that it is told of,
/// and later events; no lock is lost by it. 16,384 events and lines for the log may wait for that thread. Further ones are left out,
/// and counted: [`Stats::untold`](crate::Stats::untold).
///
/// It may call anything that does not end the manager. What it causes itself is told after it has returned, so one that takes a
/// lock whenever it is called is called for ever. It must not own the manager, which would never end then.
///
/// Events come from several threads at a time. Those of one call and its hold come in the order in which they happened, with
/// two exceptions: a lock that is passed on to a waiting thread can be [acquired](Event::Acquired) before its
/// [release](Event::Released) is told, and the end of a hold can be told before an extension that was confirmed, or a key that
/// was set again, just before. In a forked child nothing is told.
///
/// A panic in it is caught and logged, and it is not called again.
pub trait Observer: Send + Sync {
    /// Something has happened.
    fn event(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> Observer for F {
    fn event(&self, event: &Event) {
        self(event);
    }
}

impl<O: Observer + ?Sized> Observer for std::sync::Arc<O> {
    fn event(&self, event: &Event) {
        (**self).event(event);
    }
}

/// Something that a manager has done, or noticed: see [`Observer`].
///
/// After one [`Began`](Event::Began) comes one [`Acquired`](Event::Acquired) or one [`NotAcquired`](Event::NotAcquired), and
/// after that `Acquired` one of [`Released`](Event::Released), [`Lost`](Event::Lost) and [`LeftToExpire`](Event::LeftToExpire).
/// A reentrant mutex that its thread takes again is one hold, and so is a write lock that becomes a read lock. A call that is
/// refused at once, for its name or its ttl or because the manager was shut down, is not told. One that the shutdown overtakes
/// can be told to have got the lock, which is given back then.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A call begins to take a lock.
    #[non_exhaustive]
    Began {
        /// Which.
        lock: ObservedLock,
    },
    /// The call has got it.
    #[non_exhaustive]
    Acquired {
        /// Which.
        lock: ObservedLock,
        /// How long the call took, of which most is waiting for others.
        waited: Duration,
        /// The number of the hold.
        token: FencingToken,
    },
    /// The call has not got it.
    #[non_exhaustive]
    NotAcquired {
        /// Which.
        lock: ObservedLock,
        /// How long the call took.
        waited: Duration,
        /// What it returns.
        error: AcquireError,
    },
    /// The nodes were asked for a lock, and have decided. A call that waits makes several rounds.
    #[non_exhaustive]
    Round {
        /// Which.
        lock: ObservedLock,
        /// How it went.
        outcome: RoundOutcome,
        /// From the first byte sent to the decision.
        took: Duration,
    },
    /// A holder has given its lock back.
    #[non_exhaustive]
    Released {
        /// Which.
        lock: ObservedLock,
        /// For how long it was held.
        held: Duration,
        /// Whether a majority of the nodes has confirmed that in time. Otherwise the lock may stay taken for its ttl.
        confirmed: bool,
    },
    /// A guard was dropped by a panic, and its lock is left to expire: see [`Builder::lock_delay`](crate::Builder::lock_delay).
    #[non_exhaustive]
    LeftToExpire {
        /// Which.
        lock: ObservedLock,
        /// For how long it was held.
        held: Duration,
    },
    /// A lock was lost while it was held: the work was not protected to its end.
    #[non_exhaustive]
    Lost {
        /// Which.
        lock: ObservedLock,
        /// For how long it was held.
        held: Duration,
        /// How.
        why: Lost,
    },
    /// A majority has confirmed an extension.
    #[non_exhaustive]
    Extended {
        /// Which.
        lock: ObservedLock,
        /// From the first byte sent to the decision.
        took: Duration,
        /// How much of the lease was left before: two thirds of the ttl when all is well, and the lock is lost where this
        /// comes to zero. The earliest warning that there is.
        left: Duration,
    },
    /// No majority has confirmed an extension within the response timeout. Late answers count, and nodes that owe none are
    /// asked again, while anything of the lease is left.
    #[non_exhaustive]
    NotExtended {
        /// Which.
        lock: ObservedLock,
        /// How much of the lease is left. If it is zero, a [`Lost`](Event::Lost) is on its way.
        left: Duration,
    },
    /// A node had lost the key of a held lock, and has it again.
    #[non_exhaustive]
    Healed {
        /// Which.
        lock: ObservedLock,
        /// The node.
        node: NodeId,
    },
    /// A node is connected.
    #[non_exhaustive]
    NodeUp {
        /// The node.
        node: NodeId,
        /// Its host and port, or the path of its socket.
        address: Arc<str>,
    },
    /// The connection to a node was lost, or an attempt to connect has failed: each time.
    #[non_exhaustive]
    NodeDown {
        /// The node.
        node: NodeId,
        /// Its host and port, or the path of its socket.
        address: Arc<str>,
        /// Why; [`NodeFailure::ShutDown`] at the end of the manager.
        why: NodeFailure,
    },
    /// A node owes an answer for longer than the response timeout: it is not asked until it has caught up.
    #[non_exhaustive]
    NodeSilent {
        /// The node.
        node: NodeId,
    },
    /// A node that was silent answers again.
    #[non_exhaustive]
    NodeAnswers {
        /// The node.
        node: NodeId,
    },
    /// A node has answered a command.
    #[non_exhaustive]
    NodeReply {
        /// The node.
        node: NodeId,
        /// From when it was written to when the answer was read.
        took: Duration,
        /// Why the answer does not count, if it does not.
        failure: Option<NodeFailure>,
    },
    /// A node may have forgotten locks, and has no vote for a while.
    #[non_exhaustive]
    NodeQuarantined {
        /// The node.
        node: NodeId,
        /// For how long from now.
        left: Duration,
        /// Why.
        why: QuarantineReason,
    },
    /// The clock of a node was set.
    #[non_exhaustive]
    ClockStep {
        /// The node.
        node: NodeId,
        /// By how much.
        by: Duration,
        /// Forward, which makes locks expire early; otherwise back.
        forward: bool,
    },
}

/// How a round went, in which the nodes were asked for a lock.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum RoundOutcome {
    /// A majority has granted it.
    Won,
    /// Somebody else holds it.
    Held,
    /// Another contender was faster.
    Overtaken,
    /// Too many nodes have failed.
    NoQuorum,
    /// A majority has granted it, but nothing usable of the ttl was left.
    TooLate,
    /// Something that is no lock has this name.
    KeyInUse,
}

/// The lock that an event is about.
///
/// Names are for logs. There may be any number of them, so a metric must not have one as a label: that is what the class is
/// for.
#[derive(Clone)]
pub struct ObservedLock {
    name: LockName,
    class: Option<Arc<str>>,
}

impl ObservedLock {
    pub(crate) fn new(name: &LockName, class: Option<&Arc<str>>) -> ObservedLock {
        ObservedLock { name: name.clone(), class: class.cloned() }
    }

    /// Its name; of several names, all of them as logs show them.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// The [class](crate::Mutex::class) that the program has given it; `other` if none.
    #[must_use]
    pub fn class(&self) -> &str {
        self.class.as_deref().unwrap_or(OTHER)
    }

    /// The class, shared; `None` if the program has given none.
    #[must_use]
    pub fn shared_class(&self) -> Option<&Arc<str>> {
        self.class.as_ref()
    }
}

/// The name, as logs show it.
impl fmt::Display for ObservedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl fmt::Debug for ObservedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservedLock").field("name", &self.name).field("class", &self.class()).finish()
    }
}
