//! Holds of a read-write lock.

use std::ops::Deref;

use crate::error::{Lost, ReleaseError, Released};
use crate::ids::FencingToken;
use crate::lock::hold::{Hold, LockGuard};

/// Holds a read-write lock for reading until it is dropped: beside other readers, without a writer.
///
/// It is a [`Hold`], kept, lost, released and dropped like any other, and can be sent to another thread. What you read is the
/// work of one writer *if the guard is still valid afterwards*: read, then [`check`](Hold::check), then use the result.
/// A writer that continues after the loss of its lock must be rejected by the storage: see
/// [`guide::safety`](crate::guide::safety#readers).
///
/// Readers have no fencing token. They have the number of the [last writer](ReadGuard::last_writer).
#[doc(alias = "RwLockReadGuard")]
#[must_use = "a guard that is not bound to a name releases the lock at once: write `let _guard = …`, not `let _ = …`"]
#[derive(Debug)]
pub struct ReadGuard(pub(crate) Hold);

/// Holds a read-write lock for writing until it is dropped.
///
/// It is the [`LockGuard`] of the [mutex](crate::LockManager::mutex) of that name, which all functions take that take one,
/// and can be [made a reader](WriteGuard::downgrade) without a gap.
#[doc(alias = "RwLockWriteGuard")]
#[must_use = "a guard that is not bound to a name releases the lock at once: write `let _guard = …`, not `let _ = …`"]
#[derive(Debug)]
pub struct WriteGuard(pub(crate) LockGuard);

impl ReadGuard {
    /// A number that is not below the fencing token of any writer before this hold, and below that of every writer after it.
    /// Does not block.
    ///
    /// For what is done with what was read: a reader that was stopped, and goes on after its lock was lost, acts on what a
    /// writer has replaced since. Storage that keeps the largest [fencing token](LockGuard::fencing_token) it has seen from
    /// writers, and refuses numbers below it, refuses such a reader as well. Readers need not register there, and several have
    /// the same number. See [`guide::safety`](crate::guide::safety#readers), also for what they can register.
    ///
    /// It holds as long as the nodes keep their counters, see [`Builder::fencing_ttl`](crate::Builder::fencing_ttl). Where
    /// there has been no writer yet it is a number below that of the first.
    #[must_use]
    pub fn last_writer(&self) -> FencingToken {
        self.0.lock.token
    }

    /// Releases the lock and reports how that went. Blocks like [`Hold::release`].
    ///
    /// # Errors
    ///
    /// As for [`Hold::release`].
    #[doc(alias = "unlock")]
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.0.release()
    }
}

impl WriteGuard {
    /// Continues as a reader, without a gap for another writer. Waiting readers join.
    ///
    /// Blocks for one round trip, at most one [response timeout](crate::Builder::response_timeout). Nodes that do not answer
    /// in time keep readers out for a little longer: they are told again with the next renewal. The reader's lock lasts for as
    /// long as the writer's, and who listens for the loss of that hears of the loss of this.
    ///
    /// There is no way back: two readers that both waited to become writers would wait for each other for ever. Release,
    /// [`write`](crate::RwLock::write), and look again: if nobody has written meanwhile, the storage's largest token is still
    /// the [last writer's](ReadGuard::last_writer).
    ///
    /// # Errors
    ///
    /// How the lock was lost, before or now. It is not held then.
    #[doc(alias = "into_read")]
    pub fn downgrade(self) -> Result<ReadGuard, Lost> {
        self.0.0.downgrade().map(ReadGuard)
    }

    /// Releases the lock and reports how that went. Blocks like [`Hold::release`].
    ///
    /// # Errors
    ///
    /// As for [`Hold::release`].
    #[doc(alias = "unlock")]
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.0.release()
    }
}

impl From<ReadGuard> for Hold {
    fn from(guard: ReadGuard) -> Hold {
        guard.0
    }
}

impl From<WriteGuard> for Hold {
    fn from(guard: WriteGuard) -> Hold {
        guard.0.0
    }
}

impl Deref for ReadGuard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.0
    }
}

impl Deref for WriteGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}
