//! Until when a node's server is believed to be its master, and since when it may vote.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::nodes::lane::Lane;
use crate::engine::nodes::server::Server;
use crate::error::{NodeFailure, QuarantineReason};
use crate::time::{Moment, Tick};

impl Server {
    /// Whether what was asked at `asked` counts: of a node that is more than one process, somebody has said shortly before
    /// that this server is its master. Always, if it is one.
    pub(super) fn is_believed(&self, asked: Moment) -> bool {
        asked.boot_micros() <= self.believed_until.load(Ordering::Acquire)
    }

    /// The node is more than one process, and this server its master, until then as far as is known.
    pub(super) fn believe_until(&self, until: Moment) {
        self.believed_until.store(until.boot_micros(), Ordering::Release);
    }

    /// It is the master no longer.
    pub(super) fn disbelieve(&self) {
        self.believed_until.store(0, Ordering::Release);
    }

    /// Its lane, if it is a master of a cluster.
    pub(super) fn with_slots(&self) -> Option<&Lane> {
        self.lane.as_ref().filter(|it| it.has_slots)
    }

    /// Why what it granted does not count, as far as the sets of servers are known now.
    pub(super) fn why_not_in_sets(&self, asked: Tick, length: Option<Duration>) -> Option<NodeFailure> {
        self.in_sets.why_not(asked, length, self.with_slots().is_some())
    }

    /// For how long what it grants does not count yet, and why: of a lane, of slots that were never used.
    pub(crate) fn quarantine_left(&self, now: Tick) -> Option<(Duration, QuarantineReason)> {
        let length = self.records.quarantine();
        let of_lane = self.with_slots().and_then(|it| it.left(now, length));
        let of_set = self.with_slots().and_then(|_| self.in_sets.left(now, length));
        self.status.left(now).into_iter().chain(of_lane).chain(of_set).max_by_key(|it| it.0)
    }
}
