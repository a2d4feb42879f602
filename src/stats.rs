//! Counters of a manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::ids::NodeId;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of the manager since it was built.
        ///
        /// A snapshot: the counters are read one after another, so under load two of them may be a
        /// few events apart. All numbers but `waiting` and `partly_held` only grow.
        #[derive(Clone, Debug, Default, Eq, PartialEq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Locks held now that are not on all nodes with a vote:
            /// [`HeldLock::missing_on`](crate::observer::HeldLock::missing_on). Restart no server
            /// before this is zero.
            pub partly_held: usize,
            /// Quarantined nodes and the time left. A node appears with its first call.
            pub quarantined: Vec<(NodeId, Duration)>,
            /// One entry per node, in their order.
            pub nodes: Vec<NodeStats>,
        }

        /// The counters themselves, shared by all threads.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            /// Without the numbers of nodes and held locks.
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* ..Stats::default() }
            }
        }
    };
}

counters! {
    /// Rounds that reached a majority in time.
    rounds_won,
    /// Rounds lost because another owner held the lock on too many nodes.
    rounds_held,
    /// Rounds lost because too many nodes failed.
    rounds_without_quorum,
    /// Rounds that a majority granted too late.
    rounds_too_late,
    /// Calls that wait for a lock now, or make their first attempt.
    waiting,
    /// Locks handed to a waiting call of the same manager together with the release.
    hand_overs,
    /// Messages that hand a lock over, counted per node. A lost message costs time only.
    notices,
    /// Second rounds, with a larger fencing token for nodes whose counter was ahead.
    fencing_raises,
    /// Extensions confirmed by a majority while the lock was valid, by renewal or by you.
    extensions,
    /// Extensions without a majority within the response timeout. A late majority counts in
    /// `extensions` while the lock is valid; nodes without a pending answer are tried again.
    extensions_failed,
    /// Locks lost before their guard was dropped, including those that only the release discovered.
    locks_lost,
    /// Keys of held locks restored on nodes that had lost them.
    healed,
    /// Releases that a majority confirmed.
    releases,
    /// Releases that no majority confirmed within the response timeout.
    releases_unconfirmed,
    /// Commands handed to nodes.
    commands,
    /// Answers after the decision or the timeout of their round. Mostly ordinary: a round ends at
    /// the quorum.
    late_answers,
    /// Connections established, over all nodes.
    connections,
    /// Failed connections and attempts, over all nodes.
    connection_failures,
    /// Clocks of nodes found to have been set forward.
    clock_steps,
    /// Log lines and events dropped because the logger or the observer was too slow.
    dropped_events,
}

/// One node, as the manager last saw it: [`Stats::nodes`]. No network access.
///
/// [`check_nodes`](crate::LockManager::check_nodes) contacts the node and reports its problems.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct NodeStats {
    /// Which node.
    pub node: NodeId,
    /// Its host and port, or the path of its socket; without user and password.
    pub address: Arc<str>,
    /// It is connected.
    pub up: bool,
    /// An answer has not come for nearly the response timeout.
    pub silent: bool,
    /// Commands without an answer yet.
    pub unanswered: usize,
    /// Commands not written yet.
    pub queued: usize,
    /// Answers received.
    pub answers: u64,
    /// Answers that were failures or did not count.
    pub failures: u64,
    /// Connections established.
    pub connections: u64,
    /// Failed connections and attempts.
    pub connection_failures: u64,
}

/// Counters of one node.
#[derive(Debug, Default)]
pub(crate) struct NodeCounters {
    pub(crate) answers: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) connection_failures: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
