//! Several names at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::NAMES_MAX;
use crate::error::AcquireError;
use crate::ids::LockName;
use crate::inspection::Inspection;
use crate::kinds::methods::{LockHandle, mutex_methods, setters, shown, with_method};
use crate::lock::{LockGuard, WaitLimit};
use crate::manager::LockManager;
use crate::wire::LockCommands;

/// Several locks taken together: all or none.
///
/// A cheap description, made by [`LockManager::multi_lock`](crate::LockManager::multi_lock),
/// without any state of a hold. Each hold is one [`LockGuard`] for all the names.
///
/// Each node grants all names or none, in one step. So no caller holds one name and waits for
/// another, and **the order of names does not matter**: two calls with the same names in reverse
/// order never deadlock. Every name is the lock of the [`mutex`](crate::LockManager::mutex) of that
/// name. It excludes that mutex, the reentrant mutex, other sets with this name, and clients of the
/// plain Redlock layout.
///
/// A hold has one [fencing token](LockGuard::fencing_token), larger than that of every earlier
/// holder of each of the names. It is **lost as a whole** once no majority of the nodes has all of
/// the names. The remaining keys stay until the guard is dropped or they expire.
///
/// Not reentrant. See [`guide::other_locks`](crate::guide::other_locks#several-names).
#[derive(Clone)]
#[doc(alias("MultiMutex", "RedissonMultiLock"))]
pub struct MultiLock {
    inner: LockHandle,
}

impl LockManager {
    /// Describes a lock of several names, taken together: all of them, or none. Does not block;
    /// contacts no node.
    ///
    /// One to 64 names, at most 64 KiB in total with their [prefixes](crate::Builder::prefix). The
    /// rules for each are those of [`mutex`](LockManager::mutex). The order does not matter, and a
    /// repeated name counts once: a transfer from an account to itself needs no case of its own.
    /// Invalid names are an error when the lock is taken.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// let both = locks.multi_lock(["account:7", "account:9"]).lock()?;
    /// // Nobody else is at either account; a transfer the other way round waits.
    /// drop(both);
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[must_use]
    #[doc(alias("lock_all", "mlock"))]
    pub fn multi_lock<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        let names: BTreeSet<LockName> = names
            .into_iter()
            .map(|it| LockName::new(it.as_ref()))
            .collect();
        let names: Arc<[LockName]> = names.into_iter().collect();
        let joined = names
            .iter()
            .map(LockName::as_bytes)
            .collect::<Vec<_>>()
            .join(&b", "[..]);
        let commands = |prefix: &[u8], ttls| {
            LockCommands::multi(prefix, names.iter().map(LockName::as_bytes), ttls)
        };
        let mut inner = LockHandle::new(&self.engine, &joined, commands);
        inner.spec_mut().names = names;
        MultiLock { inner }
    }
}

impl MultiLock {
    /// The names, sorted and each once, without the manager's prefix.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.inner.spec.names.iter().map(LockName::as_bytes)
    }

    /// The state of each name on the nodes, in the order of [`names`](MultiLock::names): see
    /// [`Mutex::inspect`](crate::Mutex::inspect). Blocks as that does, for one name after the
    /// other. An unresponsive node delays the first one only.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn inspect(&self) -> Result<Vec<Inspection>, AcquireError> {
        let names: Vec<_> = self.names().map(|name| (name, None)).collect();
        self.inner.inspect_each(&names)
    }

    fn take(&self, patience: WaitLimit) -> Result<LockGuard, AcquireError> {
        let count = self.inner.spec.names.len();
        if count == 0 {
            return Err(AcquireError::NoNames);
        }
        if NAMES_MAX < count {
            return Err(AcquireError::TooManyNames {
                count,
                max: NAMES_MAX,
            });
        }
        self.inner.check()?;
        self.inner.take(patience)
    }
}

setters!(MultiLock);
shown!(MultiLock, names);

mutex_methods! {
    MultiLock::take -> LockGuard, made: r#"multi_lock(["account:7", "account:9"])"#,
    /// While the call waits for a conflicting name, other callers can take the remaining names. So
    /// calls for single names can overtake it as long as its names are never free at once: see
    /// [`guide::other_locks`](crate::guide::other_locks#several-names) for a remedy.
    about,
    /// - [`AcquireError::NoNames`], [`AcquireError::TooManyNames`]: likewise.
    errors,
}

with_method! {
    MultiLock::with -> LockGuard, made: r#"multi_lock(["account:7", "account:9"])"#,
    over: lock, token: fencing_token,
    about,
}
