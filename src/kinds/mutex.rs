//! The plain lock: one holder at a time.

use crate::error::AcquireError;
use crate::kinds::methods::{
    LockHandle, inspected, mutex_methods, named, setters, shown, with_method,
};
use crate::lock::{LockGuard, WaitLimit};
use crate::manager::LockManager;
use crate::wire::LockCommands;

/// A lock with one holder at a time, in the whole fleet.
///
/// A cheap description, made by [`LockManager::mutex`](crate::LockManager::mutex). Clone it or
/// share it between threads: it has no state of a hold. Each hold is a [`LockGuard`].
///
/// Descriptions with the same name are the same lock in every process, if the managers were built
/// with the same nodes, database numbers and prefix. Not reentrant: a thread that holds the lock
/// and takes it again waits for itself, and the log warns after a ttl. Use
/// [`reentrant_mutex`](crate::LockManager::reentrant_mutex) for code that calls itself.
#[derive(Clone)]
pub struct Mutex {
    pub(super) inner: LockHandle,
}

impl LockManager {
    /// Describes the lock called `name`. Does not block; contacts no node.
    ///
    /// A name is any bytes, up to 64 KiB with the [prefix](crate::Builder::prefix), and may be
    /// empty. It is the Redis key, so other Redlock clients with the same nodes and name share the
    /// lock. Names that begin with `quorlock:` are reserved. An invalid name is an error when the
    /// lock is taken.
    #[must_use]
    #[doc(alias("get_lock", "create_lock", "leader", "leader_election"))]
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Mutex {
        let name = name.as_ref();
        Mutex {
            inner: LockHandle::new(&self.engine, name, |prefix, ttls| {
                LockCommands::mutex(prefix, name, ttls)
            }),
        }
    }
}

impl Mutex {
    fn take(&self, patience: WaitLimit) -> Result<LockGuard, AcquireError> {
        self.inner.take(patience)
    }
}

named!(Mutex);
inspected!(Mutex, made: r#"mutex("nightly-report")"#);
setters!(Mutex);
shown!(Mutex, name);

mutex_methods! {
    Mutex::take -> LockGuard, made: r#"mutex("nightly-report")"#,
    about,
    errors,
}

with_method! {
    Mutex::with -> LockGuard, made: r#"mutex("nightly-report")"#,
    over: lock, token: fencing_token,
    about,
}
