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
/// Cheap to clone: clones are the same manager. Runs one thread per node and one for renewal, named `quorlock-n0`, … and
/// `quorlock-renewal`. They end with the last handle: a clone of the manager, a lock description or a guard.
/// Dropping the last one blocks for at most the [shutdown grace](crate::Builder::shutdown_grace), usually not at all.
///
/// After a `fork` the child has none of these threads: every attempt to lock there is
/// [`AcquireError::Forked`](crate::AcquireError::Forked). Build a manager of its own in the child.
#[derive(Clone, Debug)]
#[doc(alias = "redlock")]
#[doc(alias = "redsync")]
pub struct LockManager {
    pub(crate) engine: Arc<Engine>,
}

// No state of a manager is half changed while a caller's code runs, and its own mutexes are not poisoned: it can be used
// after a panic.
impl UnwindSafe for LockManager {}
impl RefUnwindSafe for LockManager {}

impl LockManager {
    /// Acquires the lock called `name`: short for [`mutex(name).lock()`](crate::Mutex::lock), and blocks as that does.
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

    /// Acquires the lock called `name` if it is free: short for [`mutex(name).try_lock()`](crate::Mutex::try_lock), and blocks
    /// as that does.
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
    pub fn try_lock_for(
        &self,
        name: impl AsRef<[u8]>,
        timeout: Duration,
    ) -> Result<LockGuard, AcquireError> {
        self.mutex(name).try_lock_for(timeout)
    }

    /// Calls `work` under the lock called `name`: short for [`mutex(name).with(work)`](crate::Mutex::with), and blocks as that
    /// does.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// // The first `?` is for the lock, the second one for the work.
    /// let token: u64 = locks.with("nightly-report", |guard| guard.fencing_token().to_string().parse())??;
    /// # let _ = token;
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    pub fn with<R>(
        &self,
        name: impl AsRef<[u8]>,
        work: impl FnOnce(&LockGuard) -> R,
    ) -> Result<R, WithError<R>> {
        self.mutex(name).with(work)
    }

    /// Counters since the manager was built. Does not block.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = &self.engine.shared;
        Stats {
            partly_held: self
                .held()
                .iter()
                .filter(|it| !it.missing_on.is_empty())
                .count(),
            quarantined: shared.fanout.quarantined(),
            nodes: shared.fanout.nodes.iter().map(|it| it.stats()).collect(),
            ..shared.fanout.counters.snapshot()
        }
    }

    /// The locks that this manager holds now, oldest first. For health pages and to find forgotten guards. Does not block; asks no
    /// node.
    ///
    /// Also those whose guards other threads have. What several threads or processes of this machine hold by other managers is
    /// not in it: [`inspect`](crate::Mutex::inspect) asks the nodes who holds a lock. In a forked child it is empty.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # let locks = quorlock::LockManager::builder(["redis://10.0.0.1"]).build()?;
    /// for hold in locks.held() {
    ///     println!("{}: for {:?}, {:?} left, token {}", hold.lock, hold.age, hold.left, hold.token);
    /// }
    /// # Ok::<(), quorlock::BuildError>(())
    /// ```
    #[must_use]
    pub fn held(&self) -> Vec<HeldLock> {
        let shared = &self.engine.shared;
        // Looked at before anything is locked: see `Process`.
        if shared.process.is_forked() {
            Vec::new()
        } else {
            shared.schedule.held()
        }
    }

    /// Checks every node: whether its grants count, and what weakens your locks although they do. For start-up, health pages and
    /// command lines.
    ///
    /// Blocks until all nodes have answered, for at most twice the [response timeout](crate::Builder::response_timeout), and
    /// twice the [connect timeout](crate::Builder::connect_timeout) where a node is connected to first: until the first lock,
    /// managers connect twice, to find several servers behind one address. Settings are read anew, and each server tries a
    /// write that changes nothing. After a [shutdown](LockManager::shutdown) no node is asked.
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
    #[doc(alias = "ping")]
    #[doc(alias = "health")]
    pub fn check_nodes(&self) -> Vec<NodeCheck> {
        checked(&self.engine, ManagerState::check_nodes)
    }

    /// Finds all held locks and permits and inspects each of them. For people and command lines.
    ///
    /// `pattern`: how their names look, without the [prefix](crate::Builder::prefix): `*` stands for any bytes, and `?` for
    /// one. There is no register of names. They are found by what this crate stores beside a lock, so a lock that only other
    /// clients have used for the last [`fencing_ttl`](crate::Builder::fencing_ttl) is not found; and where the key is there
    /// as well, on the same node, so a lock that is free is not listed. Names longer than 60,000 bytes are left out, and there
    /// are 100,000 at most.
    ///
    /// Changes nothing. Needs `SCAN`: see the [access list](crate::guide::redis_access#access-list). A user that may not use all keys needs a
    /// prefix, or a pattern, that only those fit which it may: a node refuses the question otherwise.
    ///
    /// Blocks for as long as it takes to look through all keys of all nodes, side by side, in parts of 500 keys with
    /// pauses in between, so that no node works for more than a fifth of the time for it: a few seconds for each million of
    /// keys. A node that does not answer is given up after a [response timeout](crate::Builder::response_timeout).
    /// A [shutdown](LockManager::shutdown) ends it.
    ///
    /// # Errors
    ///
    /// A manager that was shut down, before or meanwhile, or a forked process. A node that cannot be asked is no error:
    /// [`Listing::missed`] says why.
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
    #[doc(alias = "keys")]
    #[doc(alias = "scan")]
    pub fn list(&self, pattern: impl AsRef<[u8]>) -> Result<Listing, AcquireError> {
        self.engine
            .operate(|shared| shared.list(pattern.as_ref(), &self.engine.shutdown))?
    }

    /// What only an operator should do, by hand.
    #[must_use]
    pub fn admin(&self) -> Admin<'_> {
        Admin {
            engine: &self.engine,
        }
    }

    /// Ends the manager before its last handle goes.
    ///
    /// Held locks are [lost](crate::Lost::ShutDown) and released, all together. What is queued is sent, and all threads are
    /// joined. Once the releases are written, guards report the loss, and waiting calls return
    /// [`AcquireError::ShutDown`](crate::AcquireError::ShutDown), as do all later ones. So the process may end when any of them
    /// returns: see [`guide::programs`](crate::guide::programs).
    ///
    /// Blocks for at most the [shutdown grace](crate::Builder::shutdown_grace); a thread that is still busy then, with a name
    /// server for example, is left behind, and the log says so. A second call waits for the first one.
    #[doc(alias = "shut_down")]
    #[doc(alias = "close")]
    #[doc(alias = "stop")]
    pub fn shutdown(&self) {
        self.engine
            .shutdown(self.engine.shared.config.shutdown_grace);
    }
}

/// What `check` finds, or that no node can be asked.
fn checked(engine: &Engine, check: impl FnOnce(&ManagerState) -> Vec<NodeCheck>) -> Vec<NodeCheck> {
    engine
        .operate(|shared| check(shared))
        .unwrap_or_else(|_| engine.shared.check_nothing())
}

/// What only an operator should do, by hand: [`LockManager::admin`].
#[derive(Debug)]
pub struct Admin<'a> {
    engine: &'a Engine,
}

impl Admin<'_> {
    /// Confirms, as an operator who knows it, that the new servers have lost nothing. Their grants count at once.
    ///
    /// **Two can hold a lock after this** if it is not true. A server that was restarted without its data, or replaced by an empty
    /// one, looks like a new server and may have lost locks that are held. Call this once, when somebody sets up servers that no
    /// program has used: in a command of its own, or as a step of an installation. Never call it when a program starts, nor
    /// because locks are unavailable.
    ///
    /// Confirms nodes without a trace of use ([`QuarantineReason::New`](crate::error::QuarantineReason::New)), for the server
    /// process that runs now, and for all clients. A node that was restarted, promoted, restored or emptied, as far as this
    /// manager or the node's own record shows, stays quarantined for its time.
    ///
    /// Returns the rows of [`check_nodes`](LockManager::check_nodes) after that: a node that could not be confirmed has the reason.
    /// Blocks as long as three of these calls. Connected clients notice with their next command.
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

    /// Raises the longest ttl of any lock on all servers, and with it the quarantine of a server that has lost its data. Never
    /// lowers it.
    ///
    /// It [belongs to the servers](crate::Builder::max_ttl): programs with a longer one get no vote before this. Changes nothing
    /// unless every node answers and takes writes, because a server that keeps a shorter one would vote too early once it has
    /// lost such a lock. A server that was restarted within `max_ttl` has no vote until that time is over.
    ///
    /// Returns the rows of [`check_nodes`](LockManager::check_nodes) after that. It is done if
    /// [`max_ttl`](crate::error::NodeCheck::max_ttl) of each is as long, and can be repeated otherwise. Blocks as long as three of
    /// these calls. Call it on a manager that has taken no lock. Allowed: up to 1 h.
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

    /// Takes a lock from those who were [seen](crate::Mutex::inspect) to hold it: readers and writers.
    ///
    /// **Two can be at work after this.** The old holder goes on until it tries to extend the lock, which is after a third of
    /// its ttl, and learns then that the lock is [lost](crate::Lost::Gone); another gets the lock at once. Only storage that
    /// checks [fencing tokens](crate::guide::safety) refuses the old one from the first moment. So this is for a lock whose
    /// holder is known to be dead, or one whose keys have no expiry.
    ///
    /// Each node deletes what was seen there and nothing else: whoever has got the lock since keeps it. A lock of
    /// [several names](LockManager::multi_lock) is lost when it is taken from one of them. Keys of other
    /// programs ([`StoredKey::Foreign`](crate::inspection::StoredKey::Foreign), [`StoredKey::OtherType`](crate::inspection::StoredKey::OtherType)) stay.
    ///
    /// Returns a row for each node: [`NodeAnswer::Released`](crate::error::NodeAnswer::Released) if what was seen is not there any
    /// more, [`NodeAnswer::NotAsked`](crate::error::NodeAnswer::NotAsked) if nothing was seen. Blocks until the nodes have answered,
    /// for at most the [response timeout](crate::Builder::response_timeout) for each holder.
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
    /// println!("{seen}");
    /// // If somebody says that this is to go:
    /// locks.admin().release(&seen)?;
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[doc(alias = "force_unlock")]
    #[doc(alias = "break_lock")]
    pub fn release(&self, seen: &Inspection) -> Result<Vec<NodeReport>, AcquireError> {
        self.engine.operate(|shared| shared.take_from(seen))
    }

    /// Deletes the fencing counters that were [seen](crate::Mutex::inspect) of a lock, so that nodes keep nothing of its name.
    ///
    /// For names that are used once, by a test or a measurement: else nodes keep a counter for the
    /// [`fencing_ttl`](crate::Builder::fencing_ttl) behind each of them. **Not for a name that is used again soon**: the next
    /// fencing token comes from the clocks of clients then, and is larger than the last one only if they differ by less than the
    /// time in between.
    ///
    /// Does nothing if anybody was seen to hold the lock or to wait for it. Each node deletes the counter that was seen there and
    /// no other: whoever has got the lock since keeps its own. Call it for a slot of a [semaphore](crate::Semaphore::inspect) as
    /// well.
    ///
    /// Returns a row for each node: [`NodeAnswer::Released`](crate::error::NodeAnswer::Released) if the counter that was seen is not
    /// there any more, [`NodeAnswer::NotAsked`](crate::error::NodeAnswer::NotAsked) if there was none. Blocks until the nodes have
    /// answered, for at most the [response timeout](crate::Builder::response_timeout) for each number that was seen.
    ///
    /// # Errors
    ///
    /// A manager that was [shut down](LockManager::shutdown), or a forked process.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// locks.admin().forget(&locks.mutex("measurement-4711").inspect()?)?;
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[doc(alias = "delete")]
    pub fn forget(&self, seen: &Inspection) -> Result<Vec<NodeReport>, AcquireError> {
        self.engine.operate(|shared| shared.delete_counters(seen))
    }
}
