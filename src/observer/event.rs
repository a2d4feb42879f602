//! Events, their observers, and their locks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{AcquireError, LostReason, NodeFailure, QuarantineReason, RoundLoss};
use crate::ids::{FencingToken, LockName, NodeId};

/// The class of locks without one.
pub(super) const OTHER: &str = "other";

/// Receives the events of a manager: for metrics, traces and records of your own. See
/// [`Builder::observer`](crate::Builder::observer).
///
/// A closure `|event: &Event|` is an observer.
///
/// Called by the thread `quorlock-events` alone, for one event at a time, and soon after its cause.
/// Calls do not wait for it. A blocking observer delays later events and log lines, and nothing
/// else. Up to 16,384 of them wait; further ones are dropped and counted in
/// [`Stats::dropped_events`](crate::Stats::dropped_events). A
/// [shutdown](crate::LockManager::shutdown) waits for the queued ones, within its grace: end a
/// manager before the process exits.
///
/// It may call anything, also what ends the manager. Its own calls cause events too: an observer
/// that locks at every event never stops. It must not own the manager, or the manager never ends.
///
/// Events of one call and its hold come in order, with two exceptions: a lock passed on to a
/// waiting thread can be [acquired](Event::Acquired) before its [release](Event::Released) event,
/// and the end of a hold can come before an extension or a restored key of the moment before. A
/// forked child gets no events.
///
/// After a panic, which is caught and logged, it is not called again.
pub trait Observer: Send + Sync {
    /// Something has happened.
    fn event(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> Observer for F {
    fn event(&self, event: &Event) {
        self(event);
    }
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn event(&self, event: &Event) {
        (**self).event(event);
    }
}

/// An event of a manager: see [`Observer`].
///
/// After one [`Began`](Event::Began) comes one [`Acquired`](Event::Acquired) or one
/// [`NotAcquired`](Event::NotAcquired), and after that `Acquired` one of
/// [`Released`](Event::Released) and [`Lost`](Event::Lost). A reentrant mutex taken again by its
/// thread is one hold. A call refused at once, for its name, its ttl or a shutdown, causes no
/// event. A call overtaken by a shutdown can report `Acquired` for a lock that is then released.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A call begins to take a lock.
    #[non_exhaustive]
    Began {
        /// Which.
        lock: ObservedLock,
    },
    /// The call acquired the lock.
    #[non_exhaustive]
    Acquired {
        /// Which.
        lock: ObservedLock,
        /// Duration of the call, mostly waiting.
        waited: Duration,
        /// The fencing token of the hold.
        token: FencingToken,
        /// The ttl with which it was taken.
        ttl: Duration,
    },
    /// The call did not acquire the lock.
    #[non_exhaustive]
    NotAcquired {
        /// Which.
        lock: ObservedLock,
        /// Duration of the call.
        waited: Duration,
        /// The error it returns.
        error: AcquireError,
    },
    /// A round ended. A waiting call makes several rounds.
    #[non_exhaustive]
    Round {
        /// Which.
        lock: ObservedLock,
        /// Whether it got the lock, or why not.
        outcome: Result<(), RoundLoss>,
        /// From the first byte sent to the decision.
        took: Duration,
    },
    /// A holder released its lock.
    #[non_exhaustive]
    Released {
        /// Which.
        lock: ObservedLock,
        /// How long it was held.
        held: Duration,
        /// Whether a majority confirmed in time. If not, the lock may stay taken for its ttl.
        confirmed: bool,
    },
    /// A lock was lost while held: the work was not protected to its end.
    #[non_exhaustive]
    Lost {
        /// Which.
        lock: ObservedLock,
        /// How long it was held.
        held: Duration,
        /// How.
        why: LostReason,
    },
    /// A majority confirmed an extension.
    #[non_exhaustive]
    Extended {
        /// Which.
        lock: ObservedLock,
        /// From the first byte sent to the decision.
        took: Duration,
        /// Lease left before the extension: about two thirds of the ttl normally, zero when the
        /// lock is lost. The earliest warning.
        left: Duration,
    },
    /// No majority confirmed an extension within the response timeout. While the lease lasts, late
    /// answers count and the other nodes are tried again.
    #[non_exhaustive]
    NotExtended {
        /// Which.
        lock: ObservedLock,
        /// Lease left. At zero a [`Lost`](Event::Lost) event follows.
        left: Duration,
    },
    /// A node that lacked a held lock has it again.
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
    /// A connection to a node was lost, or an attempt failed. Reported each time.
    #[non_exhaustive]
    NodeDown {
        /// The node.
        node: NodeId,
        /// Its host and port, or the path of its socket.
        address: Arc<str>,
        /// Why; [`NodeFailure::ShutDown`] at the end of the manager.
        why: NodeFailure,
    },
    /// A node has not answered for nearly the response timeout, and is skipped until it catches up.
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
    /// A node answered a command.
    #[non_exhaustive]
    NodeReply {
        /// The node.
        node: NodeId,
        /// From the write to the read of the answer.
        took: Duration,
        /// Why the answer does not count; `None` if it does.
        failure: Option<NodeFailure>,
    },
    /// A node may have lost locks and is quarantined.
    #[non_exhaustive]
    NodeQuarantined {
        /// The node.
        node: NodeId,
        /// Time left.
        left: Duration,
        /// Why.
        why: QuarantineReason,
    },
}

/// The lock of an event.
///
/// Names are for logs. Use the class as a metric label: there may be any number of names.
#[derive(Clone)]
pub struct ObservedLock {
    name: LockName,
    class: Option<Arc<str>>,
}

impl ObservedLock {
    pub(crate) fn new(name: &LockName, class: Option<&Arc<str>>) -> ObservedLock {
        ObservedLock {
            name: name.clone(),
            class: class.cloned(),
        }
    }

    /// The name; of a multi-lock, all names as logs show them.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// The [class](crate::Mutex::class) set by the program; `other` by default.
    #[must_use]
    pub fn class(&self) -> &str {
        self.class.as_deref().unwrap_or(OTHER)
    }

    /// The class, shared; `None` by default.
    #[must_use]
    pub fn shared_class(&self) -> Option<&Arc<str>> {
        self.class.as_ref()
    }
}

/// The name, cut and escaped.
impl fmt::Display for ObservedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl fmt::Debug for ObservedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservedLock")
            .field("name", &self.name)
            .field("class", &self.class())
            .finish()
    }
}

/// A lock that a manager holds: [`LockManager::held`](crate::LockManager::held).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldLock {
    /// Which.
    pub lock: ObservedLock,
    /// The fencing token of the hold.
    pub token: FencingToken,
    /// How long it has been held.
    pub age: Duration,
    /// Lease left unless the lock is extended.
    pub left: Duration,
    /// Nodes with a vote that have not confirmed it since the last extension was sent. The next one
    /// sets a lost key again.
    pub missing_on: Vec<NodeId>,
}
