//! Holds of a read-write lock.

use crate::error::{ReleaseError, Released};
use crate::ids::FencingToken;
use crate::lock::hold::{Hold, LockGuard, contains};

/// Holds a read-write lock for reading until it is dropped: beside other readers, without a writer.
///
/// It is a [`Hold`], kept, lost, released and dropped like any other, and can be sent to another
/// thread. The data that you read is the work of one writer *if the guard is still valid
/// afterwards*: read, then [`check`](Hold::check), then use the result. Storage must reject a
/// writer that continues after the loss of its lock: see
/// [`guide::fencing`](crate::guide::fencing#readers).
///
/// Readers have no fencing token. They have the number of the [last
/// writer](ReadGuard::last_writer).
#[doc(alias = "RwLockReadGuard")]
#[must_use = "a guard that is not bound to a name releases the lock at once: write `let _guard = \
    …`, not `let _ = …`"]
#[derive(Debug)]
pub struct ReadGuard(pub(crate) Hold);

/// Holds a read-write lock for writing until it is dropped.
///
/// It is the [`LockGuard`] of the [mutex](crate::LockManager::mutex) of that name, for any function
/// that takes one.
#[doc(alias = "RwLockWriteGuard")]
#[must_use = "a guard that is not bound to a name releases the lock at once: write `let _guard = \
    …`, not `let _ = …`"]
#[derive(Debug)]
pub struct WriteGuard(pub(crate) LockGuard);

impl ReadGuard {
    /// At least the fencing token of every writer before this hold, and below that of every writer
    /// after it. Does not block.
    ///
    /// For actions on the data read: a reader that was paused and continues after the loss of its
    /// lock acts on replaced data. Storage that keeps the largest [fencing
    /// token](LockGuard::fencing_token) of writers and rejects smaller numbers rejects such a
    /// reader too. Readers need not register there, and several have the same number. See
    /// [`guide::fencing`](crate::guide::fencing#readers), also for numbers that readers can
    /// register.
    ///
    /// Valid as long as the nodes keep their counters: see
    /// [`Builder::fencing_ttl`](crate::Builder::fencing_ttl). Before the first writer it is a
    /// number below that writer's token.
    #[must_use]
    pub fn last_writer(&self) -> FencingToken {
        self.0.lock.token
    }

    /// Releases the lock and returns the result. Blocks like [`Hold::release`].
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
    /// Releases the lock and returns the result. Blocks like [`Hold::release`].
    ///
    /// # Errors
    ///
    /// As for [`Hold::release`].
    #[doc(alias = "unlock")]
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.0.release()
    }
}

contains! { ReadGuard: Hold, 0; WriteGuard: LockGuard, 0; }
