//! What users hold.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Engine, ManagerState};
use crate::error::{AcquireError, NodeCheck, NodeReport, WithError};
use crate::inspection::{Inspection, Listing};
use crate::lock::LockGuard;
use crate::observer::HeldLock;
use crate::stats::Stats;

/// Connects to the nodes and extends held locks. Make one per program and set of nodes.
///
/// Cheap to clone: clones are the same manager. Its [threads](crate#threads) are `quorlock-n0`, …
/// for the nodes, `quorlock-renewal` and `quorlock-events`. They end with the last handle: a clone
/// of the manager, a lock description or a guard. Dropping the last one blocks for at most the
/// [shutdown grace](crate::Builder::shutdown_grace), usually not at all.
///
/// After a `fork` the child has none of these threads: every attempt to lock there is
/// [`AcquireError::Forked`](crate::AcquireError::Forked). Build a manager of its own in the child.
#[derive(Clone, Debug)]
#[doc(alias("redlock", "redsync"))]
pub struct LockManager {
    pub(crate) engine: Arc<Engine>,
}

// No state of a manager is half changed while a caller's code runs, and its own mutexes are not
// poisoned: it can be used after a panic.
impl UnwindSafe for LockManager {}
impl RefUnwindSafe for LockManager {}

impl LockManager {
    /// Acquires the lock called `name`: short for [`mutex(name).lock()`](crate::Mutex::lock), and
    /// blocks as that does.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// let guard = locks.lock("nightly-report")?;
    /// // Only one process in the fleet is here.
    /// drop(guard);
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[doc(alias = "acquire")]
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Result<LockGuard, AcquireError> {
        self.mutex(name).lock()
    }

    /// Acquires the lock called `name` if it is free: short for
    /// [`mutex(name).try_lock()`](crate::Mutex::try_lock), and blocks as that does.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_lock(&self, name: impl AsRef<[u8]>) -> Result<LockGuard, AcquireError> {
        self.mutex(name).try_lock()
    }

    /// Acquires the lock called `name`, waiting for at most `timeout`: short for
    /// [`mutex(name).try_lock_for(timeout)`](crate::Mutex::try_lock_for), and blocks as that does.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    #[doc(alias("lock_timeout", "lock_for"))]
    pub fn try_lock_for(
        &self,
        name: impl AsRef<[u8]>,
        timeout: Duration,
    ) -> Result<LockGuard, AcquireError> {
        self.mutex(name).try_lock_for(timeout)
    }

    /// Calls `work` under the lock called `name`: short for
    /// [`mutex(name).with(work)`](crate::Mutex::with), and blocks as that does.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Examples
    ///
    /// ```
    /// # type Failed = Box<dyn std::error::Error + Send + Sync>;
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), Failed> {
    /// // The first `?` is for the lock, the second one for the work.
    /// let text = locks.with("nightly-report", |guard| guard.fencing_token().to_string())?;
    /// let token: u64 = text.parse()?;
    /// # let _ = token;
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[doc(alias("with_lock", "run"))]
    pub fn with<R>(
        &self,
        name: impl AsRef<[u8]>,
        work: impl FnOnce(&LockGuard) -> R,
    ) -> Result<R, WithError> {
        self.mutex(name).with(work)
    }

    /// The state of the lock called `name` on the nodes: short for
    /// [`mutex(name).inspect()`](crate::Mutex::inspect), and blocks as that does.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::inspect`](crate::Mutex::inspect).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// println!("nightly-report: {}", locks.inspect("nightly-report")?.state());
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    pub fn inspect(&self, name: impl AsRef<[u8]>) -> Result<Inspection, AcquireError> {
        self.mutex(name).inspect()
    }

    /// Counters since the manager was built. Does not block. Without nodes in a forked child.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = &self.engine.shared;
        let counters = shared.fanout.journal.counters.snapshot();
        // Before anything is locked: see `Process`.
        if shared.process.is_forked() {
            return counters;
        }
        Stats {
            partly_held: self
                .held()
                .iter()
                .filter(|it| !it.missing_on.is_empty())
                .count(),
            quarantined: shared.fanout.quarantined(),
            nodes: shared.fanout.nodes.iter().map(|it| it.stats()).collect(),
            ..counters
        }
    }

    /// The locks held by this manager now, oldest first. For health pages and to find forgotten
    /// guards. Does not block; contacts no node.
    ///
    /// Includes locks whose guards are on other threads, and no locks of other managers:
    /// [`inspect`](crate::Mutex::inspect) shows the holder of any lock. Empty in a forked child.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # let locks = quorlock::LockManager::builder(["redis://10.0.0.1"]).build()?;
    /// for hold in locks.held() {
    ///     let (lock, token) = (&hold.lock, hold.token);
    ///     println!("{lock}: for {:?}, {:?} left, token {token}", hold.age, hold.left);
    /// }
    /// # Ok::<(), quorlock::BuildError>(())
    /// ```
    #[must_use]
    pub fn held(&self) -> Vec<HeldLock> {
        let shared = &self.engine.shared;
        // Before anything is locked: see `Process`.
        if shared.process.is_forked() {
            Vec::new()
        } else {
            shared.schedule.held(false)
        }
    }

    /// Checks every node: whether its grants count, and which weaknesses it has. For start-up,
    /// health pages and command lines.
    ///
    /// Blocks until all nodes have answered, for at most twice the [response
    /// timeout](crate::Builder::response_timeout), and twice the [connect
    /// timeout](crate::Builder::connect_timeout) where a node is connected to first: until the
    /// first lock, managers connect twice, to find several servers behind one address. Settings are
    /// read anew, and each server runs the scripts of a mutex and of a read-write lock, on names
    /// that nobody else uses and that expire after seconds. A user without the commands of
    /// read-write locks then appears in the server's `ACL LOG`. After a
    /// [shutdown](LockManager::shutdown) nothing is sent.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// for node in locks.check_nodes().iter().filter(|it| !it.is_fine()) {
    ///     eprintln!("{node}");
    /// }
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[must_use]
    #[doc(alias("ping", "health", "check_servers"))]
    pub fn check_nodes(&self) -> Vec<NodeCheck> {
        checked(&self.engine, ManagerState::check_nodes)
    }

    /// Finds all held locks and permits and inspects each of them. For people and command lines.
    ///
    /// `pattern`: a pattern for names without the [prefix](crate::Builder::prefix). `*` stands for
    /// any bytes, `?` for one byte. There is no register of names: the search finds a lock by the
    /// keys that this crate stores beside it, if the lock's own key is on the same node. So it
    /// finds no free locks, and no lock that only other clients have used within the
    /// [`fencing_ttl`](crate::Builder::fencing_ttl). Names above 60,000 bytes are left out. At most
    /// 100,000 locks are listed.
    ///
    /// Changes nothing. Needs `SCAN`: see the [access
    /// list](crate::guide::redis_access#access-list). A user with access to some keys only needs a
    /// prefix or a pattern that matches only permitted keys. Otherwise a node refuses the command.
    ///
    /// Blocks until all keys of all nodes are searched, side by side, in parts of 500 keys. Pauses
    /// between the parts limit the search to a fifth of a node's time: a few seconds per million
    /// keys. A node without an answer within a [response timeout](crate::Builder::response_timeout)
    /// is given up. A [shutdown](LockManager::shutdown) ends the search.
    ///
    /// # Errors
    ///
    /// A manager that was shut down, before or during the search, or a forked process. A failing
    /// node is no error: [`Listing::missed`] has the reason.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// for lock in locks.list("order:*")?.locks() {
    ///     println!("{}: {}", lock.name().escape_ascii(), lock.state());
    /// }
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[doc(alias("keys", "scan", "list_locks"))]
    pub fn list(&self, pattern: impl AsRef<[u8]>) -> Result<Listing, AcquireError> {
        self.engine
            .operate(|shared| shared.list(pattern.as_ref(), &self.engine.shutdown))?
    }

    /// Operations for an operator, by hand.
    #[must_use]
    pub fn admin(&self) -> Admin<'_> {
        Admin {
            engine: &self.engine,
        }
    }

    /// Ends the manager before its last handle goes.
    ///
    /// Held locks are [lost](crate::LostReason::ShutDown) and released, all together. Queued
    /// commands are sent, and all threads are joined. Once the releases are written, guards report
    /// the loss, and waiting calls return
    /// [`AcquireError::ShutDown`](crate::AcquireError::ShutDown), as do all later ones. So the
    /// process may end when any of them returns: see [`guide::programs`](crate::guide::programs).
    ///
    /// Blocks for at most the [shutdown grace](crate::Builder::shutdown_grace). A thread that is
    /// still busy then, for example with a name server, is left behind and logged. A second call
    /// waits for the first one.
    #[doc(alias("shut_down", "close", "stop"))]
    pub fn shutdown(&self) {
        self.engine
            .shutdown(self.engine.shared.config.shutdown_grace);
    }
}

/// The rows of `check`; rows without an answer after a shutdown or a fork.
fn checked(engine: &Engine, check: impl FnOnce(&ManagerState) -> Vec<NodeCheck>) -> Vec<NodeCheck> {
    engine
        .operate(|shared| check(shared))
        .unwrap_or_else(|_| engine.shared.check_nothing())
}

/// Operations for an operator, by hand: [`LockManager::admin`].
#[derive(Debug)]
pub struct Admin<'a> {
    engine: &'a Engine,
}

impl Admin<'_> {
    /// Confirms that the new servers have lost nothing. Their grants count at once.
    ///
    /// **Two can hold a lock after this** if the confirmation is wrong. A server restarted without
    /// its data, or replaced by an empty one, looks like a new server and may have lost held locks.
    /// Call this once, for new servers that no program has used: in a command of its own, or as a
    /// step of an installation. Never call it at the start of a program or because locks are
    /// unavailable.
    ///
    /// Confirms nodes without a trace of use
    /// ([`QuarantineReason::New`](crate::error::QuarantineReason::New)), for the running server
    /// process and for all clients. A node that was restarted, promoted, restored or emptied,
    /// according to this manager or to its own record, stays quarantined for its time.
    ///
    /// Returns the rows of a [`check_nodes`](LockManager::check_nodes) afterwards. The row of a
    /// node that could not be confirmed has the reason. Blocks as long as three such calls.
    /// Connected clients notice with their next command.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) {
    /// // Once, by hand, after the servers have been set up.
    /// for node in locks.admin().vouch().iter().filter(|node| node.failure.is_some()) {
    ///     eprintln!("{node}");
    /// }
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap());
    /// ```
    #[must_use]
    pub fn vouch(&self) -> Vec<NodeCheck> {
        checked(self.engine, ManagerState::vouch)
    }

    /// Raises the longest ttl of any lock on all servers, and with it the length of quarantines.
    /// Never lowers it.
    ///
    /// It [belongs to the servers](crate::Builder::max_ttl): programs with a longer ttl get no vote
    /// before this. Changes nothing unless every node answers and accepts writes: a server with a
    /// shorter value would vote too early after it lost such a lock. A server restarted within
    /// `max_ttl` has no vote until that time is over.
    ///
    /// Returns the rows of a [`check_nodes`](LockManager::check_nodes) afterwards. Done if the
    /// [`max_ttl`](crate::error::NodeCheck::max_ttl) of each row is at least as long; otherwise
    /// repeat the call. Blocks as long as three such calls. Call it on a manager that has taken no
    /// lock. Allowed: up to 1 h.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn run(locks: &quorlock::LockManager) {
    /// let max_ttl = Duration::from_secs(60);
    /// let rows = locks.admin().set_max_ttl(max_ttl);
    /// assert!(rows.iter().all(|row| row.max_ttl.is_some_and(|it| max_ttl <= it)), "not done");
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().quarantine(true).build().unwrap());
    /// ```
    #[must_use]
    pub fn set_max_ttl(&self, max_ttl: Duration) -> Vec<NodeCheck> {
        checked(self.engine, |shared| shared.set_max_ttl(max_ttl))
    }

    /// Takes a lock from its [inspected](crate::Mutex::inspect) holders: readers and writers.
    ///
    /// **Two can be at work after this.** Another caller gets the lock at once. The old holder
    /// continues until its next extension, after a third of its ttl, finds the lock
    /// [lost](crate::LostReason::Gone). Only storage that checks [fencing
    /// tokens](crate::guide::fencing) rejects the old holder from the first moment. Use this for a
    /// lock whose holder is dead, or whose keys have no expiry.
    ///
    /// Each node deletes the inspected values only: a later holder keeps the lock. A lock of
    /// [several names](LockManager::multi_lock) is lost with one of its names. Keys of other
    /// programs ([`StoredKey::Foreign`](crate::inspection::StoredKey::Foreign),
    /// [`StoredKey::OtherType`](crate::inspection::StoredKey::OtherType)) stay.
    ///
    /// Returns a row for each node: [`NodeAnswer::Released`](crate::error::NodeAnswer::Released) if
    /// the inspected values are gone, [`NodeAnswer::NotAsked`](crate::error::NodeAnswer::NotAsked)
    /// if there were none. Blocks for at most one [response
    /// timeout](crate::Builder::response_timeout) per holder.
    ///
    /// # Errors
    ///
    /// A manager that was [shut down](LockManager::shutdown), or a forked process.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// let seen = locks.mutex("nightly-report").inspect()?;
    /// println!("{}", seen.state());
    /// // If this lock has to go:
    /// locks.admin().release(&seen)?;
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[doc(alias("force_unlock", "force_release", "break_lock"))]
    pub fn release(&self, seen: &Inspection) -> Result<Vec<NodeReport>, AcquireError> {
        self.engine.operate(|shared| shared.take_from(seen))
    }
}
