//! Rules of a manager for the records of its servers, and facts from these records.

use std::time::Duration;

use crate::answer::{Record, RecordReply, ServerInfo};
use crate::config::{Config, Margin};
use crate::error::{NodeFailure, NodeFinding};
use crate::ids::{RecordVersion, wide};
use crate::logic::lease;
use crate::wire::{self, Command, SyncKind, SyncRecord};

/// See the module. The settings, and the facts from all servers so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordRules {
    /// Longest ttl of this manager's locks; `None` without quarantine.
    own: Option<Duration>,
    pub(super) margin: Margin,
    silence_of_promoted: Duration,
    servers: u64,
    /// Whether a server with a finding that can cost a lock is refused.
    strict: bool,
    /// Largest `max_ttl` in any record, in milliseconds. It only grows: a server that has lost it
    /// gets it back.
    pub(crate) max_ttl: u64,
    /// Whether a lock was asked for. Until then servers are only looked at.
    pub(crate) is_used: bool,
}

impl RecordRules {
    pub(crate) fn new(config: &Config, servers: usize) -> RecordRules {
        RecordRules {
            own: config.longest_ttl().filter(|_| config.quarantine),
            margin: config.margin,
            silence_of_promoted: config.silence_of_promoted,
            servers: wide(servers),
            strict: config.strict,
            max_ttl: 0,
            is_used: false,
        }
    }

    /// Length of a quarantine; `None` without quarantine.
    pub(crate) fn quarantine(&self) -> Option<Duration> {
        let max_ttl = self.own?.max(Duration::from_millis(self.max_ttl));
        let life = max_ttl.saturating_add(self.margin.of(max_ttl));
        Some(life.saturating_add(self.silence_of_promoted))
    }

    /// Raises the `max_ttl` for all records.
    pub(crate) fn raise(&mut self, max_ttl: u64) {
        if self.own.is_some() {
            self.max_ttl = self.max_ttl.max(max_ttl);
        }
    }

    pub(crate) fn sync_record(&self, kind: SyncKind) -> Command {
        wire::sync_record(&SyncRecord {
            record_version: RecordVersion::draw(),
            own: self.own.map_or(0, lease::millis),
            reported: self.max_ttl,
            servers: self.servers,
            kind,
        })
    }

    /// Reason to refuse a server with this record: only one of server and manager has a quarantine,
    /// or that of the server is too short for the manager's locks.
    pub(crate) fn record_mismatch(&self, shown: &RecordReply) -> Option<NodeFailure> {
        let on_server = shown.record != Record::Off;
        if on_server != self.own.is_some() {
            return Some(NodeFailure::QuarantineDiffers { on_server });
        }
        let here = self.own?;
        let there = Duration::from_millis(shown.max_ttl);
        // Zero after a look without a record.
        let is_short = !there.is_zero() && shown.max_ttl < lease::millis(here);
        is_short.then_some(NodeFailure::MaxTtl { there, here })
    }

    /// Reason to refuse the vote of such a server, if any.
    pub(crate) fn refusal(&self, server_info: &ServerInfo) -> Option<NodeFailure> {
        let shown = server_info.record_reply.as_ref();
        let evicts = shown
            .filter(|it| it.is_limited)
            .and_then(|it| it.evicts.as_deref());
        if let Some(policy) = evicts {
            return Some(NodeFailure::evicts(policy));
        }
        if self.strict
            && let Some(finding) = server_info
                .findings()
                .into_iter()
                .find(NodeFinding::disqualifies)
        {
            return Some(NodeFailure::Disqualified { finding });
        }
        // A look is never refused.
        self.record_mismatch(shown.filter(|_| self.is_used)?)
    }

    /// The finding, if other programs on this server have another number of servers.
    pub(crate) fn other_nodes(&self, shown: &RecordReply) -> Option<NodeFinding> {
        (shown.servers != 0 && shown.servers != self.servers).then_some(NodeFinding::OtherNodes {
            there: shown.servers,
            here: self.servers,
        })
    }

    /// The `max_ttl` of a stored record that fits.
    pub(crate) fn synced_max_ttl(&self, shown: &RecordReply) -> Option<u64> {
        (shown.is_stored && self.record_mismatch(shown).is_none()).then_some(shown.max_ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(record: Record, max_ttl: u64) -> RecordReply {
        RecordReply {
            max_ttl,
            ..RecordReply::of(record, Duration::ZERO)
        }
    }

    fn rules(max_ttl: Option<u64>) -> RecordRules {
        let config = Config {
            quarantine: max_ttl.is_some(),
            max_ttl: max_ttl.map(Duration::from_secs),
            ..Config::default()
        };
        RecordRules::new(&config, 3)
    }

    #[test]
    fn h27_a_manager_uses_servers_with_its_own_kind_of_quarantine_alone() {
        for on_server in [true, false] {
            let record = if on_server { Record::Kept } else { Record::Off };
            let with = rules(Some(1));
            let without = rules(None);
            let failure = Some(NodeFailure::QuarantineDiffers { on_server });
            let (fits, misfits) = if on_server {
                (with, without)
            } else {
                (without, with)
            };
            let max_ttl = if on_server { 1_000 } else { 0 };
            assert_eq!(fits.record_mismatch(&shown(record, max_ttl)), None);
            assert_eq!(misfits.record_mismatch(&shown(record, max_ttl)), failure);
        }
    }

    #[test]
    fn b5_a_server_that_may_evict_locks_has_no_vote() {
        let evicts = |policy: Option<&str>, is_limited| ServerInfo {
            record_reply: Some(RecordReply {
                evicts: policy.map(str::to_owned),
                is_limited,
                ..shown(Record::Kept, 0)
            }),
            ..ServerInfo::default()
        };
        let failure = Some(NodeFailure::evicts("volatile-ttl"));
        // Also to who only looks.
        let records = rules(Some(10));
        let limited = evicts(Some("volatile-ttl"), true);
        assert_eq!(records.refusal(&limited), failure);
        for fits in [
            evicts(Some("volatile-ttl"), false),
            evicts(None, true),
            ServerInfo::default(),
        ] {
            assert_eq!(records.refusal(&fits), None);
        }
    }

    #[test]
    fn h15_the_largest_max_ttl_of_any_record_is_that_of_all() {
        let mut records = rules(Some(10));
        assert_eq!(
            records.quarantine(),
            Some(Duration::from_nanos(10_102_000_001))
        );
        records.raise(10_000);
        assert_eq!(records.max_ttl, 10_000);

        records.raise(60_000);
        records.raise(30_000);

        assert_eq!(
            records.quarantine(),
            Some(Duration::from_nanos(60_602_000_001))
        );
        assert_eq!(records.max_ttl, 60_000);

        let mut without = rules(None);
        without.raise(90_000);
        assert_eq!(without.quarantine(), None);
        assert_eq!(without.synced_max_ttl(&shown(Record::Off, 0)), Some(0));
    }

    #[test]
    fn h15_a_manager_with_a_longer_ttl_than_a_record_has_gets_no_vote_there() {
        let records = rules(Some(60));
        let failure = NodeFailure::MaxTtl {
            there: Duration::from_secs(10),
            here: Duration::from_secs(60),
        };
        assert_eq!(
            records.record_mismatch(&shown(Record::Kept, 10_000)),
            Some(failure)
        );
        for max_ttl in [60_000, 3_600_000] {
            assert_eq!(records.record_mismatch(&shown(Record::Kept, max_ttl)), None);
        }
        assert_eq!(
            records.record_mismatch(&shown(Record::Missing, 0)),
            None,
            "a look"
        );
    }
}
