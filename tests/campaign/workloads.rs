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

struct Parts {
    name: &'static str,
    take: fn(&LockManager, &mut fastrand::Rng, &Call) -> Result<Taken, AcquireError>,
    /// What is done under the lock.
    work: fn(&mut Client, &Hold),
}

/// The parts of a work, from its file.
macro_rules! parts {
    ($file:ident) => {
        Parts {
            name: $file::NAME,
            take: $file::take,
            work: $file::work,
        }
    };
}

impl Workload {
    pub(crate) const ALL: [Workload; 4] = [
        Workload::Registers,
        Workload::Readers,
        Workload::Transfers,
        Workload::Permits,
    ];

    fn parts(self) -> Parts {
        match self {
            Workload::Registers => parts!(registers),
            Workload::Readers => parts!(readers),
            Workload::Transfers => parts!(transfers),
            Workload::Permits => parts!(permits),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.parts().name
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
        (self.parts().take)(locks, rng, call)
    }

    /// What is done under the lock.
    pub(crate) fn work(self, client: &mut Client, hold: &Hold) {
        (self.parts().work)(client, hold);
    }
}
