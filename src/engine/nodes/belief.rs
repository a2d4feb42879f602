//! Until when a node's server is believed to be its master, and since when it may vote.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::nodes::node::Node;
use crate::error::Quarantine;
use crate::time::{Moment, Tick};

impl Node {
    /// Whether what was asked at `asked` counts: of a node that is more than one process, somebody has said shortly before
    /// that this server is its master. Always, if it is one.
    pub(super) fn is_believed(&self, asked: Moment) -> bool {
        asked.boot_micros() <= self.believed_until.load(Ordering::Acquire)
    }

    /// The node is more than one process, and this server its master, until then as far as is known.
    pub(super) fn believe_until(&self, until: Moment) {
        self.believed_until.store(until.boot_micros(), Ordering::Release);
    }

    /// For how long what it grants does not count yet, and why: of a lane, of slots that were never used.
    pub(crate) fn quarantine_left(&self, now: Tick) -> Option<(Duration, Quarantine)> {
        let of_lane = self.lane.as_ref().and_then(|it| it.left(now, self.records.quarantine()));
        self.status.left(now).into_iter().chain(of_lane).max_by_key(|it| it.0)
    }
}
