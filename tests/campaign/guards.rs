//! A hold of whatever kind, and how a client asks for one.

use std::time::Duration;

use quorlock::{
    AcquireError, FencingToken, Hold, LockGuard, Mutex, Permit, ReadGuard, ReleaseError, Released,
    WriteGuard,
};

use crate::history::Mode;

/// How a client asks this time.
pub(crate) struct Call {
    pub(crate) renew: bool,
    pub(crate) wait: Duration,
    pub(crate) patience: u8,
}

impl Call {
    pub(crate) fn lock(&self, mutex: Mutex) -> Result<LockGuard, AcquireError> {
        let mutex = mutex.renew(self.renew);
        self.ask(
            || mutex.try_lock(),
            |wait| mutex.try_lock_for(wait),
            || mutex.lock(),
        )
    }

    /// Once, for a while, or for as long as it takes.
    pub(crate) fn ask<G>(
        &self,
        once: impl FnOnce() -> Result<G, AcquireError>,
        for_a_while: impl FnOnce(Duration) -> Result<G, AcquireError>,
        to_the_end: impl FnOnce() -> Result<G, AcquireError>,
    ) -> Result<G, AcquireError> {
        match self.patience {
            0 | 1 => once(),
            2 => for_a_while(self.wait),
            _ => to_the_end(),
        }
    }
}

/// What a client has got.
pub(crate) struct Taken {
    pub(crate) guard: Guard,
    pub(crate) mode: Mode,
    /// Of the resources, with commas between them.
    pub(crate) names: String,
}

impl Taken {
    pub(crate) fn exclusive(guard: LockGuard, names: impl Into<String>) -> Taken {
        Taken {
            guard: Guard::Lock(guard),
            mode: Mode::Exclusive,
            names: names.into(),
        }
    }
}

pub(crate) enum Guard {
    Lock(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
}

impl Guard {
    /// Of a reader the number of the last writer.
    pub(crate) fn token(&self) -> FencingToken {
        match self {
            Guard::Lock(it) => it.fencing_token(),
            Guard::Read(it) => it.last_writer(),
            Guard::Write(it) => it.fencing_token(),
            Guard::Permit(it) => it.fencing_token(),
        }
    }

    pub(crate) fn hold(&self) -> &Hold {
        match self {
            Guard::Lock(guard) => guard,
            Guard::Read(guard) => guard,
            Guard::Write(guard) => guard,
            Guard::Permit(permit) => permit,
        }
    }

    pub(crate) fn release(self) -> Result<Released, ReleaseError> {
        Hold::from(self).release()
    }
}

impl From<Guard> for Hold {
    fn from(guard: Guard) -> Hold {
        match guard {
            Guard::Lock(guard) => guard.into(),
            Guard::Read(guard) => guard.into(),
            Guard::Write(guard) => guard.into(),
            Guard::Permit(permit) => permit.into(),
        }
    }
}
