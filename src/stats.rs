//! Counters of a manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::ids::NodeId;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What the manager has done since it was built.
        ///
        /// A snapshot: the counters are read one after another, so under load two of them may be a few events apart.
        /// All numbers but `waiting` only grow.
        #[derive(Clone, Debug, Default, Eq, PartialEq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Nodes that have no vote yet because they may have forgotten locks, and how long that lasts. Empty as long as
            /// no call has come to the node.
            pub quarantined: Vec<(NodeId, Duration)>,
            /// What is known of each node, in their order.
            pub nodes: Vec<NodeStats>,
        }

        /// The counters themselves, shared by all threads.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self, quarantined: Vec<(NodeId, Duration)>) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* quarantined, nodes: Vec::new() }
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
    /// Rounds that a majority granted, but too late to be of use.
    rounds_too_late,
    /// Calls that wait for a lock right now, or make their first attempt.
    waiting,
    /// Locks that were handed to a waiting call of the same manager in the release itself.
    hand_overs,
    /// Releases that nodes have announced to this manager, each node for itself. Hints: a release is rarely missed.
    notices,
    /// Second rounds, in which nodes whose fencing counter was ahead were asked to accept a larger token.
    fencing_raises,
    /// Renewals and extensions that a majority confirmed while the lock was valid, also those of locks that had come into
    /// [doubt](crate::Lost::NodeClock).
    extensions,
    /// Renewals and extensions without a majority after the response timeout. A late majority counts while the lock is valid,
    /// in `extensions`; what nodes do not owe is tried again.
    extensions_failed,
    /// Locks whose hold ended before their guard was dropped, also if only the release found that.
    locks_lost,
    /// Keys of held locks that were set again on nodes which had lost them.
    healed,
    /// Releases that a majority confirmed.
    releases,
    /// Releases that no majority confirmed within the response timeout.
    releases_unconfirmed,
    /// Commands handed to nodes.
    commands,
    /// Answers that came after their round was decided or had timed out. Most are ordinary: a round ends at the quorum.
    late_answers,
    /// Connections that were established, of all nodes.
    connections,
    /// Connections or attempts to connect that failed, of all nodes.
    connection_failures,
    /// Steps of nodes' clocks that were noticed, forward and back.
    clock_steps,
    /// Lines for the log and events for the observer that were left out, because the logger or the observer took too long for
    /// those before.
    untold,
}

/// What a manager knows of one node, without asking it: [`Stats::nodes`].
///
/// [`check_nodes`](crate::LockManager::check_nodes) asks it, and says what is wrong with it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct NodeStats {
    /// Which node.
    pub node: NodeId,
    /// Its host and port, or the path of its socket; without user and password.
    pub address: Arc<str>,
    /// It is connected.
    pub up: bool,
    /// It was seen to owe an answer for longer than the response timeout, and has not answered since.
    pub silent: bool,
    /// Commands that wait for its answer now.
    pub unanswered: usize,
    /// Commands that are not written to it yet.
    pub queued: usize,
    /// Answers that it has given.
    pub answers: u64,
    /// How many of them were failures, or do not count because it has no vote.
    pub failures: u64,
    /// How often it was connected.
    pub connections: u64,
    /// Connections or attempts to connect that failed.
    pub connection_failures: u64,
}

/// What is counted of one node.
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

pub(crate) fn count_down(counter: &AtomicU64) {
    counter.fetch_sub(1, Ordering::Relaxed);
}
