//! Counters of a manager.

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
        }

        /// The counters themselves, shared by all threads.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self, quarantined: Vec<(NodeId, Duration)>) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* quarantined }
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
    /// Renewals and extensions that a majority confirmed in time, also those of locks that had come into
    /// [doubt](crate::Lost::NodeClock).
    extensions,
    /// Renewals and extensions that did not reach a majority. Each is tried again while the lock is still valid.
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
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn count_down(counter: &AtomicU64) {
    counter.fetch_sub(1, Ordering::Relaxed);
}
