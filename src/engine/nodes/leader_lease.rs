//! The leader lease of a server, and since when the server may vote.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::nodes::server::Server;
use crate::engine::nodes::shard_conn::ShardConn;
use crate::error::QuarantineReason;
use crate::time::{Moment, Tick};

impl Server {
    /// Whether what was asked at `asked` counts: in a node of several processes, a member reported shortly before
    /// that this server is its master. Always, if it is one.
    pub(super) fn has_leader_lease(&self, asked: Moment) -> bool {
        asked.boot_micros() <= self.leader_lease_until.load(Ordering::Acquire)
    }

    /// The leader lease: the node has several processes, and this server is its master until then, as far as is known.
    pub(super) fn set_leader_lease(&self, until: Moment) {
        self.leader_lease_until
            .store(until.boot_micros(), Ordering::Release);
    }

    /// Ends the leader lease: the server is the master no longer.
    pub(super) fn end_leader_lease(&self) {
        self.leader_lease_until.store(0, Ordering::Release);
    }

    /// Its shard connection, if it is a master of a cluster.
    pub(super) fn with_slots(&self) -> Option<&ShardConn> {
        self.shard_conn.as_ref().filter(|it| it.has_slots)
    }

    /// For how long what it grants does not count yet, and why: of a shard connection, of slots that were never used.
    pub(crate) fn quarantine_left(&self, now: Tick) -> Option<(Duration, QuarantineReason)> {
        let length = self.records.quarantine();
        let of_shard_conn = self.with_slots().and_then(|it| it.left(now, length));
        self.status
            .left(now)
            .into_iter()
            .chain(of_shard_conn)
            .max_by_key(|it| it.0)
    }
}
