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
    pub(crate) grip: Grip,
    pub(crate) mode: Mode,
    /// Of the resources, with commas between them.
    pub(crate) names: String,
}

impl Taken {
    pub(crate) fn exclusive(guard: LockGuard, names: impl Into<String>) -> Taken {
        Taken {
            grip: Grip::Lock(guard),
            mode: Mode::Exclusive,
            names: names.into(),
        }
    }
}

pub(crate) enum Grip {
    Lock(LockGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
}

impl Grip {
    /// Of a reader the number of the last writer.
    pub(crate) fn token(&self) -> FencingToken {
        match self {
            Grip::Lock(it) => it.fencing_token(),
            Grip::Read(it) => it.last_writer(),
            Grip::Write(it) => it.fencing_token(),
            Grip::Permit(it) => it.fencing_token(),
        }
    }

    pub(crate) fn hold(&self) -> &Hold {
        match self {
            Grip::Lock(guard) => guard,
            Grip::Read(guard) => guard,
            Grip::Write(guard) => guard,
            Grip::Permit(permit) => permit,
        }
    }

    pub(crate) fn release(self) -> Result<Released, ReleaseError> {
        Hold::from(self).release()
    }
}

impl From<Grip> for Hold {
    fn from(grip: Grip) -> Hold {
        match grip {
            Grip::Lock(guard) => guard.into(),
            Grip::Read(guard) => guard.into(),
            Grip::Write(guard) => guard.into(),
            Grip::Permit(permit) => permit.into(),
        }
    }
}
