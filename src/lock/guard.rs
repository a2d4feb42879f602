//! The guard of a lock with one holder.

use std::fmt;
use std::ops::Deref;

use crate::error::{ReleaseError, Released};
use crate::ids::FencingToken;
use crate::lock::hold::Hold;

/// Holds a lock until it is dropped: a [`Hold`] with a fencing token.
#[doc(alias = "MutexGuard")]
#[doc(alias = "Guard")]
#[must_use = "a guard that is not bound to a name releases the lock at once: write `let _guard = …`, not `let _ = …`"]
pub struct LockGuard {
    hold: Hold,
}

impl LockGuard {
    pub(crate) fn new(hold: Hold) -> LockGuard {
        LockGuard { hold }
    }

    /// The number of this hold: larger than that of every earlier holder of the lock. Does not block.
    #[must_use]
    #[doc(alias = "token")]
    #[doc(alias = "fencing")]
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Releases the lock and reports how that went: see [`Hold::release`].
    ///
    /// # Errors
    ///
    /// As for [`Hold::release`].
    #[doc(alias = "unlock")]
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.hold.release()
    }
}

impl From<LockGuard> for Hold {
    fn from(guard: LockGuard) -> Hold {
        guard.hold
    }
}

impl Deref for LockGuard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&self.hold).finish()
    }
}
