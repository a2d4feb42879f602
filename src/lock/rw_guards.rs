//! Holds of a read-write lock.

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, Instant};

use crate::engine::LostReceiver;
use crate::error::{ExtendError, Lost, ReleaseError, Released};
use crate::ids::FencingToken;
use crate::lock::guard::LockGuard;
use crate::lock::together::GiveBack;

/// Holds a read-write lock for reading until it is dropped: other readers may have it as well, and no writer has.
///
/// It is kept, lost, released and dropped like a [`LockGuard`], and can be sent to another thread. What is read under it is
/// that of one writer *if the guard is valid afterwards*: read, then [`check`](ReadGuard::check), then use what was read.
/// A writer that goes on writing after its own lock was lost is for the storage to refuse: see
/// [`guide::safety`](crate::guide::safety#readers).
///
/// It has no fencing token, because readers have none, and so it cannot be handed to a store as a writer. What it has is
/// the number of the [last writer](ReadGuard::last_writer).
#[doc(alias = "RwLockReadGuard")]
#[must_use = "a guard that is not bound to a name releases the lock at once: write `let _guard = …`, not `let _ = …`"]
pub struct ReadGuard {
    pub(crate) guard: LockGuard,
}

/// Holds a read-write lock for writing until it is dropped.
///
/// It is the [`LockGuard`] of the [mutex](crate::LockManager::mutex) of that name, which all functions take that take one,
/// and can be [made a reader](WriteGuard::downgrade) without a gap.
#[doc(alias = "RwLockWriteGuard")]
#[must_use = "a guard that is not bound to a name releases the lock at once: write `let _guard = …`, not `let _ = …`"]
pub struct WriteGuard {
    pub(crate) guard: LockGuard,
}

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
        self.guard.fencing_token()
    }

    /// Whether the lock may be relied upon right now: see [`LockGuard::is_valid`]. Does not block.
    #[must_use]
    #[doc(alias = "is_held")]
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Like [`is_valid`](ReadGuard::is_valid), as a result: after what was read, and before it is used. Does not block.
    ///
    /// # Errors
    ///
    /// How the lock was lost.
    pub fn check(&self) -> Result<(), Lost> {
        self.guard.check()
    }

    /// How long the lock may still be relied upon if nothing extends it; zero if it was lost. Does not block.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// The instant until which the lock may be relied upon if nothing extends it: see [`LockGuard::use_until`]. Does not
    /// block.
    #[must_use]
    pub fn use_until(&self) -> Instant {
        self.guard.use_until()
    }

    /// A channel on which the loss of the lock is announced: see [`LockGuard::lost`]. Does not block.
    #[must_use]
    pub fn lost(&self) -> LostReceiver {
        self.guard.lost()
    }

    /// Calls `callback` once if the lock is lost: see [`LockGuard::on_lost`]. Does not block.
    pub fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        self.guard.on_lost(callback);
    }

    /// Extends the lock so that it lasts at least `ttl` from now, less the margin; never shortens it. Blocks like
    /// [`LockGuard::extend`].
    ///
    /// # Errors
    ///
    /// As for [`LockGuard::extend`].
    #[doc(alias = "renew")]
    #[doc(alias = "refresh")]
    pub fn extend(&self, ttl: Duration) -> Result<(), ExtendError> {
        self.guard.extend(ttl)
    }

    /// Releases the lock and says how that went. Blocks like [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// As for [`LockGuard::release`].
    #[doc(alias = "unlock")]
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.guard.release()
    }
}

impl WriteGuard {
    /// Goes on as a reader. No writer comes in between; readers that wait come in.
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
        self.guard.downgrade().map(|guard| ReadGuard { guard })
    }

    /// Releases the lock and says how that went. Blocks like [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// As for [`LockGuard::release`].
    #[doc(alias = "unlock")]
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.guard.release()
    }
}

impl GiveBack for ReadGuard {
    fn give_back(self) -> Result<LockGuard, Result<(), ReleaseError>> {
        Ok(self.guard)
    }
}

impl GiveBack for WriteGuard {
    fn give_back(self) -> Result<LockGuard, Result<(), ReleaseError>> {
        Ok(self.guard)
    }
}

impl Deref for WriteGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteGuard").field(&self.guard).finish()
    }
}

impl fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadGuard").field(&self.guard).finish()
    }
}
