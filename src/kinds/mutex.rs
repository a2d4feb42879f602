//! The plain lock: one holder at a time.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use crate::engine::{Engine, LockSpec};
use crate::error::AcquireError;
use crate::kinds::methods::{key_ttls, mutex_methods, run_methods, setters};
use crate::lock::{LockGuard, Patience, acquire};
use crate::wire::Plan;

/// A lock that one holder at a time can have, in the whole fleet.
///
/// A description, made by [`LockManager::mutex`](crate::LockManager::mutex): cheap, cloneable, and without any state of
/// a hold, so it can be shared by threads. Each hold is a [`LockGuard`].
///
/// Two descriptions with the same name are the same lock, in whatever process, if their managers were built with the
/// same nodes, database numbers and prefix. Not reentrant: a thread that holds the lock and takes it again waits for
/// itself; after a ttl the log warns. For code that calls itself there is
/// [`reentrant_mutex`](crate::LockManager::reentrant_mutex).
#[derive(Clone)]
pub struct Mutex {
    engine: Arc<Engine>,
    spec: Arc<LockSpec>,
}

// A description never changes once it is made: see `LockManager`.
impl UnwindSafe for Mutex {}
impl RefUnwindSafe for Mutex {}

impl Mutex {
    pub(crate) fn of_engine(engine: Arc<Engine>, name: &[u8]) -> Mutex {
        let config = &engine.shared().config;
        let ttls = key_ttls(config);
        let plan = Plan::mutex(&config.prefix, name, ttls).signed(&config.owner_label);
        let spec = Arc::new(LockSpec::new(config, name, plan));
        Mutex { engine, spec }
    }

    /// The name, without the manager's prefix.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.spec.name.as_bytes()
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(super) fn spec(&self) -> &LockSpec {
        &self.spec
    }

    pub(super) fn spec_mut(&mut self) -> &mut LockSpec {
        Arc::make_mut(&mut self.spec)
    }

    /// Whether there can be such a lock. Asks no node.
    pub(super) fn check(&self) -> Result<(), AcquireError> {
        self.spec.check(&self.engine.shared().config)
    }

    /// Whether a lock can be called so. Asks no node.
    pub(crate) fn check_name(&self) -> Result<(), AcquireError> {
        self.spec.check_name()
    }

    // Not `acquire`: rustc would suggest it where `lock` is called by that name.
    pub(super) fn take(&self, patience: Patience) -> Result<LockGuard, AcquireError> {
        self.check()?;
        acquire(&self.engine, &self.spec, patience)
    }
}

setters!(Mutex);

mutex_methods! {
    Mutex::take -> LockGuard, made: r#"mutex("nightly-report")"#,
    about,
    errors,
}

run_methods! {
    Mutex -> LockGuard, made: r#"mutex("nightly-report")"#,
    over: lock, try_lock, try_lock_for, try_lock_until,
    about,
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (spec, mut f) = (&self.spec, f.debug_struct("Mutex"));
        f.field("name", &spec.name).field("ttl", &spec.given_ttl).field("renew", &spec.renew).finish_non_exhaustive()
    }
}
