//! The other kinds of locks. A *turn* waits for the lock, does what it is given, and releases; a *pair* tries once.

use quorlock::ReadGuard;

use super::{Ours, batch};
use crate::support::Result;
use crate::support::stats::Batch;

impl Ours {
    pub(crate) fn mutex_turn(&self, name: &str, inside: &mut dyn FnMut()) -> Result {
        let guard = self.mutex(name).lock()?;
        inside();
        Ok(guard.release().map(drop)?)
    }

    pub(crate) fn read_turn(&self, name: &str, inside: &mut dyn FnMut()) -> Result {
        let guard = self.locks.rw_lock(name).read()?;
        inside();
        Ok(guard.release().map(drop)?)
    }

    pub(crate) fn write_turn(&self, name: &str, inside: &mut dyn FnMut()) -> Result {
        let guard = self.locks.rw_lock(name).write()?;
        inside();
        Ok(guard.release().map(drop)?)
    }

    /// A turn with one of `permits`.
    pub(crate) fn permit_turn(
        &self,
        name: &str,
        permits: usize,
        inside: &mut dyn FnMut(),
    ) -> Result {
        let permit = self.locks.semaphore(name, permits).acquire()?;
        inside();
        Ok(permit.release().map(drop)?)
    }

    /// Runs `n` pairs on several names at once, one after the other.
    pub(crate) fn pairs_of(&self, n: usize, names: &[String]) -> Batch {
        batch(n, || {
            Ok(self
                .locks
                .multi_lock(names)
                .try_lock()?
                .release()
                .map(drop)?)
        })
    }

    /// Reads, and keeps reading.
    pub(crate) fn read(&self, name: &str) -> Result<ReadGuard> {
        Ok(self.locks.rw_lock(name).try_read()?)
    }

    pub(crate) fn read_pair(&self, name: &str) -> Result {
        Ok(self.read(name)?.release().map(drop)?)
    }

    /// Pairs of a reader.
    pub(crate) fn reads(&self, n: usize, name: &str) -> Batch {
        batch(n, || self.read_pair(name))
    }

    /// Pairs of a writer.
    pub(crate) fn writes(&self, n: usize, name: &str) -> Batch {
        batch(n, || {
            Ok(self.locks.rw_lock(name).try_write()?.release().map(drop)?)
        })
    }
}
