//! What locks are taken for: a work for each kind of lock, in a file of its own.

mod permits;
mod readers;
mod registers;
mod transfers;

use std::time::Duration;

use quorlock::{AcquireError, LockManager};

use crate::client::{Client, Hold};
use crate::guards::{Call, Taken};
use crate::support::{boot, nanos};

/// Its resources, and so its locks, are named after it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Workload {
    Registers,
    Readers,
    Transfers,
    Permits,
}

impl Workload {
    pub(crate) const ALL: [Workload; 4] = [
        Workload::Registers,
        Workload::Readers,
        Workload::Transfers,
        Workload::Permits,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Registers => "registers",
            Workload::Readers => "readers",
            Workload::Transfers => "transfers",
            Workload::Permits => "permits",
        }
    }

    /// What all clients do now. Slow ones stay with it for longer than they hold a lock.
    pub(crate) fn of_now(works: &[Workload], ttl: Duration, slow: bool) -> Workload {
        let turns = boot() / nanos(if slow { ttl * 2 } else { ttl / 2 });
        works[usize::try_from(turns).unwrap() % works.len()]
    }

    pub(crate) fn take(
        self,
        locks: &LockManager,
        rng: &mut fastrand::Rng,
        call: &Call,
    ) -> Result<Taken, AcquireError> {
        match self {
            Workload::Registers => registers::take(locks, rng, call),
            Workload::Readers => readers::take(locks, rng, call),
            Workload::Transfers => transfers::take(locks, rng, call),
            Workload::Permits => permits::take(locks, call),
        }
    }

    /// What is done under the lock.
    pub(crate) fn work(self, client: &mut Client, hold: &Hold) {
        match self {
            Workload::Registers | Workload::Permits => client.update(hold),
            Workload::Readers => readers::work(client, hold),
            Workload::Transfers => transfers::work(client, hold),
        }
    }
}
