//! The record of a server: since when it has kept all data.

use super::*;

/// What a server stores of it.
pub(in super::super) trait Stored<N> {
    /// What counters and tokens have to be above; 0 for no quarantine.
    fn quarantine_end(&self) -> N;
}

/// Where no server loses anything.
impl<N: Number> Stored<N> for () {
    fn quarantine_end(&self) -> N {
        N::default()
    }
}

/// The end of the quarantine alone.
impl Stored<u8> for u8 {
    fn quarantine_end(&self) -> u8 {
        *self
    }
}

impl Stored<u64> for Option<Record> {
    fn quarantine_end(&self) -> u64 {
        let end = |record: Record| Some(record.since? + record.max_ttl);
        self.and_then(end).unwrap_or(0)
    }
}

/// Its version is up to the model: a client has it, or not.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(in super::super) struct Record {
    /// `None`: since before the world began.
    pub(in super::super) since: Option<u64>,
    pub(in super::super) max_ttl: u64,
    /// The process that it is about is the one that has it.
    pub(in super::super) is_of_this_process: bool,
    /// Whether it grew out of the one of data that were swapped in.
    pub(in super::super) is_swapped_in: bool,
}

impl Record {
    /// Of a server that has kept everything for long.
    pub(in super::super) fn old(max_ttl: u64) -> Record {
        Record {
            since: None,
            max_ttl,
            is_of_this_process: true,
            is_swapped_in: false,
        }
    }

    /// Another process has it now.
    pub(in super::super) fn of_another(self) -> Record {
        Record {
            is_of_this_process: false,
            ..self
        }
    }

    /// A client needs a quarantine of `own`, and has been shown `reported` by other servers. Equal to `found` if nothing is
    /// written.
    pub(in super::super) fn synced(
        found: Option<Record>,
        now: u64,
        own: u64,
        reported: u64,
    ) -> Record {
        let known = found.filter(|it| it.is_of_this_process);
        let stored = found.map_or(own, |it| it.max_ttl);
        Record {
            since: known.map_or(Some(now), |it| it.since),
            max_ttl: stored.max(reported),
            is_of_this_process: true,
            is_swapped_in: known.is_some_and(|it| it.is_swapped_in),
        }
    }
}
