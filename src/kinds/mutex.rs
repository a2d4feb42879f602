//! The plain lock: one holder at a time.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::NAME_MAX;
use crate::engine::{CancelHandle, Engine};
use crate::error::{AcquireError, RunError};
use crate::ids::LockName;
use crate::lock::{LockGuard, Patience, Request};
use crate::logic::validity;
use crate::time;
use crate::wire::{KeyTtls, Plan};

/// A lock that one holder at a time can have, in the whole fleet.
///
/// A description, made by [`LockManager::mutex`](crate::LockManager::mutex): cheap, cloneable, and without any state of
/// a hold, so it can be shared by threads. Each hold is a [`LockGuard`].
///
/// Two descriptions with the same name are the same lock, in whatever process, if their managers were built with the
/// same nodes, database numbers and prefix. Not reentrant: a thread that holds the lock and takes it again waits for
/// itself; after a ttl the log warns. For code that calls itself there is [`reentrant_mutex`](crate::LockManager::reentrant_mutex).
#[derive(Clone)]
pub struct Mutex {
    engine: Arc<Engine>,
    name: LockName,
    plan: Arc<Plan>,
    ttl: Duration,
    renew: bool,
    fair: bool,
    cancel: Option<CancelHandle>,
}

// A description never changes once it is made: see `LockManager`.
impl UnwindSafe for Mutex {}
impl RefUnwindSafe for Mutex {}

impl Mutex {
    pub(crate) fn of_engine(engine: Arc<Engine>, name: &[u8]) -> Mutex {
        let config = &engine.shared().config;
        let ttls = KeyTtls { fence: config.fencing_ttl.map_or(0, validity::millis) };
        let plan = Arc::new(Plan::mutex(&config.prefix, name, ttls).signed(&config.owner_label));
        let (ttl, renew) = (config.ttl, config.renew);
        Mutex { engine, name: LockName::new(name), plan, ttl, renew, fair: true, cancel: None }
    }

    /// The name, without the manager's prefix.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// Sets the ttl of this lock. See [`Builder::ttl`](crate::Builder::ttl) for what it means and what is allowed.
    ///
    /// Default: the manager's. Checked when the lock is taken.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Mutex {
        self.ttl = ttl;
        self
    }

    /// Sets whether a thread of the manager extends the lock for as long as its guard exists.
    ///
    /// Without renewal the lock ends by itself after its ttl: a fixed lease, for work that must not go on unnoticed. Its
    /// keys are extended in one case only, and to its end: if they would expire before it, because a node's clock was set
    /// forward.
    ///
    /// Default: the manager's, see [`Builder::renew`](crate::Builder::renew).
    #[must_use]
    pub fn renew(mut self, renew: bool) -> Mutex {
        self.renew = renew;
        self
    }

    /// Sets whether the lock is handed out in the order in which calls began, in the whole fleet.
    ///
    /// With `true`, a node grants a free lock only to the call that has waited for longest, and
    /// [`try_lock`](Mutex::try_lock) does not get in before it. With `false`, whoever asks for a free lock gets it, unless
    /// somebody has waited for it for more than a second: the lock is not idle while that one is on its way, and a
    /// process that takes the lock again and again keeps others out for about a second. Calls that wait are told of
    /// releases in both cases. Processes may differ in this; those that say `false` get in before those that have not
    /// waited for long. See [`guide::waiting`](crate::guide::waiting) for what order means exactly.
    ///
    /// Default: `true`.
    #[must_use]
    pub fn fair(mut self, fair: bool) -> Mutex {
        self.fair = fair;
        self
    }

    /// Lets `handle` end calls that wait for this lock.
    ///
    /// Default: none.
    #[must_use]
    pub fn cancelled_by(mut self, handle: &CancelHandle) -> Mutex {
        self.cancel = Some(handle.clone());
        self
    }

    /// Acquires the lock, waiting for as long as someone else holds it.
    ///
    /// Blocks without a limit while the lock is held. An outage ends the wait: if no majority of nodes could be asked
    /// for the [outage timeout](crate::Builder::outage_timeout), that is an error.
    ///
    /// Calls are served in the order in which they began, see [`fair`](Mutex::fair). They do not poll: a release wakes the
    /// next one, see [`guide::waiting`](crate::guide::waiting).
    ///
    /// # Errors
    ///
    /// - [`AcquireError::NoQuorum`]: too many nodes failed for too long.
    /// - [`AcquireError::KeyInUse`]: something that is not a lock has this name.
    /// - [`AcquireError::Cancelled`], [`AcquireError::ShutDown`]: the wait was ended from another thread.
    /// - [`AcquireError::NameTooLong`], [`AcquireError::NameReserved`], [`AcquireError::BadTtl`]: the description
    ///   cannot be used. No node was asked.
    /// - [`AcquireError::Forked`], [`AcquireError::NoRandomness`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// let guard = locks.mutex("nightly-report").lock()?;
    /// // Only one process in the fleet is here.
    /// drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "acquire")]
    pub fn lock(&self) -> Result<LockGuard, AcquireError> {
        self.take(Patience::Forever)
    }

    /// Acquires the lock if it is free.
    ///
    /// Blocks for one round trip; for at most one [response timeout](crate::Builder::response_timeout) where nodes do
    /// not answer, and three if fencing counters have to be raised and the attempt fails. The first call of a manager
    /// also waits for connections, for at most the [connect timeout](crate::Builder::connect_timeout). Where this process
    /// has more calls under way than the nodes can answer in time, it waits for its turn first, for at most the
    /// [outage timeout](crate::Builder::outage_timeout).
    ///
    /// A lock that is free but [reserved](crate::NodeAnswer::Reserved) to a call that waits is held; for a lock that is
    /// not [fair](Mutex::fair), if that call has waited for more than a second.
    ///
    /// If several contenders split the nodes between them so that nobody may have got the lock, the attempt is repeated
    /// up to three times, after a random part of the [retry delay](crate::Builder::retry_delay).
    ///
    /// # Errors
    ///
    /// As for [`lock`](Mutex::lock), and besides:
    ///
    /// - [`AcquireError::Held`]: someone else holds it. Normal under contention. If it is
    ///   [this thread](crate::HeldBy::ThisThread), it is a mistake: the lock is not reentrant.
    /// - [`AcquireError::TooLate`]: a majority granted it, but nothing usable of the ttl was left.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// match locks.mutex("nightly-report").try_lock() {
    ///     Ok(_guard) => println!("writing the report"),
    ///     Err(err) if err.is_held() => println!("someone else is at it"),
    ///     Err(err) => return Err(err),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "try_acquire")]
    #[doc(alias = "lock_nowait")]
    pub fn try_lock(&self) -> Result<LockGuard, AcquireError> {
        self.take(Patience::None)
    }

    /// Acquires the lock, waiting for at most `timeout` if someone else holds it.
    ///
    /// Blocks. Returns within `timeout` plus the time of one [`try_lock`](Mutex::try_lock): a round that is under way
    /// when time runs out is brought to its end, so that nothing of it stays on the nodes. [`Duration::ZERO`] makes one
    /// attempt, for which it may have to wait for its turn as `try_lock` does. A timeout too long for the clock to show means "for as long as it takes". An outage ends the wait
    /// earlier if it lasts for the [outage timeout](crate::Builder::outage_timeout).
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](Mutex::try_lock).
    #[doc(alias = "lock_timeout")]
    #[doc(alias = "try_lock_timeout")]
    #[doc(alias = "lock_for")]
    #[doc(alias = "acquire_timeout")]
    pub fn try_lock_for(&self, timeout: Duration) -> Result<LockGuard, AcquireError> {
        let until = time::tick().checked_add(timeout);
        self.take(until.map_or(Patience::Forever, Patience::Until))
    }

    /// Acquires the lock, waiting until `deadline` if someone else holds it.
    ///
    /// Like [`try_lock_for`](Mutex::try_lock_for), for callers that have one deadline for several steps. A deadline in
    /// the past makes one attempt.
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](Mutex::try_lock).
    #[doc(alias = "lock_deadline")]
    #[doc(alias = "lock_until")]
    pub fn try_lock_until(&self, deadline: Instant) -> Result<LockGuard, AcquireError> {
        self.take(Patience::Until(deadline))
    }

    /// Acquires the lock like [`lock`](Mutex::lock), calls `work`, and releases.
    ///
    /// Blocks as `lock` does, then for the time of `work`, then for the release. If `work` panics the lock is released
    /// and the panic goes on. That a release was not confirmed is logged and is no error: the work is done.
    ///
    /// # Errors
    ///
    /// - [`RunError::NotAcquired`]: as for [`lock`](Mutex::lock); `work` was not called.
    /// - [`RunError::Lost`]: `work` was called and has returned, but the lock was lost before that; its value is in the
    ///   error.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::RunError<u64>> {
    /// let pages = locks.mutex("nightly-report").run(|guard| {
    ///     // Hand guard.fencing_token() to whatever stores the report.
    ///     guard.fencing_token().get()
    /// })?;
    /// # let _ = pages;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "with_lock")]
    #[doc(alias = "lock_with")]
    #[doc(alias = "with")]
    #[doc(alias = "using")]
    pub fn run<R>(&self, work: impl FnOnce(&LockGuard) -> R) -> Result<R, RunError<R>> {
        self.run_with(self.lock()?, work)
    }

    /// Calls `work` if the lock is free, like [`try_lock`](Mutex::try_lock) and [`run`](Mutex::run) in one.
    ///
    /// Blocks as `try_lock` does, then for the time of `work`, then for the release.
    ///
    /// # Errors
    ///
    /// As for [`run`](Mutex::run), with the reasons of [`try_lock`](Mutex::try_lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use quorlock::RunError;
    ///
    /// # fn write_report() {}
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), RunError<()>> {
    /// match locks.mutex("nightly-report").try_run(|_| write_report()) {
    ///     Err(RunError::NotAcquired(err)) if err.is_held() => println!("someone else is at it"),
    ///     other => other?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_run<R>(&self, work: impl FnOnce(&LockGuard) -> R) -> Result<R, RunError<R>> {
        self.run_with(self.try_lock()?, work)
    }

    /// Acquires the lock like [`try_lock_for`](Mutex::try_lock_for), calls `work`, and releases.
    ///
    /// Blocks as `try_lock_for` does, then for the time of `work`, then for the release: `timeout` is for the wait alone.
    ///
    /// # Errors
    ///
    /// As for [`run`](Mutex::run), with the reasons of [`try_lock`](Mutex::try_lock).
    #[doc(alias = "run_for")]
    #[doc(alias = "run_timeout")]
    pub fn try_run_for<R>(&self, timeout: Duration, work: impl FnOnce(&LockGuard) -> R) -> Result<R, RunError<R>> {
        self.run_with(self.try_lock_for(timeout)?, work)
    }

    /// Acquires the lock like [`try_lock_until`](Mutex::try_lock_until), calls `work`, and releases.
    ///
    /// Blocks as `try_lock_until` does, then for the time of `work`, then for the release.
    ///
    /// # Errors
    ///
    /// As for [`run`](Mutex::run), with the reasons of [`try_lock`](Mutex::try_lock).
    #[doc(alias = "run_until")]
    pub fn try_run_until<R>(&self, deadline: Instant, work: impl FnOnce(&LockGuard) -> R) -> Result<R, RunError<R>> {
        self.run_with(self.try_lock_until(deadline)?, work)
    }

    fn run_with<R>(&self, guard: LockGuard, work: impl FnOnce(&LockGuard) -> R) -> Result<R, RunError<R>> {
        let value = work(&guard);
        super::ran(&self.name, value, guard.release())
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(super) fn lock_name(&self) -> &LockName {
        &self.name
    }

    pub(super) fn own_ttl(&self) -> Duration {
        self.ttl
    }

    /// Whether there can be such a lock. Asks no node.
    pub(super) fn check(&self) -> Result<(), AcquireError> {
        if NAME_MAX < self.plan.key_len() {
            return Err(AcquireError::NameTooLong { len: self.plan.key_len(), max: NAME_MAX });
        }
        if self.plan.is_reserved() {
            return Err(AcquireError::NameReserved);
        }
        if let Some(problem) = self.engine.shared().config.ttl_problem(self.ttl) {
            return Err(AcquireError::BadTtl(problem));
        }
        Ok(())
    }

    // Not `acquire`, which rustc would offer to whoever looks for `lock` under that name.
    fn take(&self, patience: Patience) -> Result<LockGuard, AcquireError> {
        self.check()?;
        let request = Request {
            engine: &self.engine,
            name: &self.name,
            plan: &self.plan,
            ttl: validity::whole_millis(self.ttl),
            renewed: self.renew,
            fair: self.fair,
            cancel: self.cancel.as_ref(),
        };
        request.acquire(patience)
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Mutex");
        f.field("name", &self.name).field("ttl", &self.ttl).field("renew", &self.renew).finish_non_exhaustive()
    }
}
