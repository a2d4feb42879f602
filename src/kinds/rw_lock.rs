//! The read-write lock: many readers, or one writer.

use crate::error::AcquireError;
use crate::kinds::methods::{
    LockHandle, inspected, lock_methods, named, setters, shown, with_method,
};
use crate::lock::{ReadGuard, WaitLimit, WriteGuard, acquire};
use crate::manager::LockManager;

/// A lock for any number of readers or one writer at a time, in the whole fleet.
///
/// A cheap description, made by [`LockManager::rw_lock`](crate::LockManager::rw_lock). Clone it or
/// share it between threads: it has no state of a hold. Each hold is a [`ReadGuard`] or a
/// [`WriteGuard`].
///
/// A writer *is* the [mutex](crate::LockManager::mutex) of that name. So a writer, a mutex, a
/// reentrant mutex and another client of the plain Redlock layout exclude one another, and each of
/// them excludes readers.
///
/// # Order
///
/// Calls are served in order of arrival, in the whole fleet. A reader joins other readers unless a
/// writer that began earlier waits. Neither side starves. A writer that crashed while waiting keeps
/// nobody out; a crashed reader delays a writer by its ttl at most.
///
/// Not reentrant. A thread that holds a read guard and reads the same lock again can wait behind a
/// writer, which waits for that guard. Do not nest reads: pass the guard on. With
/// [`try_read_for`](RwLock::try_read_for) the inner read ends with an error. A thread that reads
/// and then writes always waits for itself.
///
/// # Examples
///
/// ```
/// # fn load() -> Vec<String> { Vec::new() }
/// # fn store(_: u64) {}
/// # fn run(locks: &quorlock::LockManager) -> Result<(), Box<dyn std::error::Error>> {
/// let catalog = locks.rw_lock("catalog");
///
/// let guard = catalog.read()?; // beside other readers
/// let rows = load();
/// guard.check()?; // no writer has been there since
/// drop(guard);
///
/// let guard = catalog.write()?; // alone
/// store(guard.fencing_token().get());
/// # drop((rows, guard));
/// # Ok(())
/// # }
/// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
/// ```
#[doc(alias("RwMutex", "ReadWriteLock"))]
#[derive(Clone)]
pub struct RwLock {
    inner: LockHandle,
}

impl LockManager {
    /// Describes the read-write lock called `name`. Does not block; contacts no node.
    ///
    /// Its writer is the [`mutex(name)`](LockManager::mutex), and names are as there.
    #[must_use]
    #[doc(alias("rwlock", "read_write_lock"))]
    pub fn rw_lock(&self, name: impl AsRef<[u8]>) -> RwLock {
        RwLock {
            inner: self.mutex(name).inner,
        }
    }
}

impl RwLock {
    fn take_read(&self, patience: WaitLimit) -> Result<ReadGuard, AcquireError> {
        let LockHandle { engine, spec } = &self.inner;
        acquire(engine, &spec.to_read(), patience).map(ReadGuard)
    }

    fn take_write(&self, patience: WaitLimit) -> Result<WriteGuard, AcquireError> {
        self.inner.take(patience).map(WriteGuard)
    }
}

named!(RwLock);
inspected!(RwLock, made: r#"rw_lock("catalog")"#);
setters!(RwLock);
shown!(RwLock, name);

lock_methods! {
    RwLock::take_read -> ReadGuard, made: r#"rw_lock("catalog")"#,
    inside: "Other readers may be here, and no writer is.", doing: "reading the catalog",
    /// For reading: beside other readers. The call waits only while a writer holds the lock or an
    /// earlier writer waits.
    about,
    #[doc(alias("lock_shared", "read_lock"))]
    read,
    #[doc(alias = "try_lock_shared")]
    try_read,
    #[doc(alias = "read_timeout")]
    try_read_for,
    errors,
}

lock_methods! {
    RwLock::take_write -> WriteGuard, made: r#"rw_lock("catalog")"#,
    inside: "Only one process in the fleet is here.", doing: "writing the catalog",
    /// For writing: the call waits while readers, another writer or a mutex of that name hold the
    /// lock.
    about,
    #[doc(alias("lock_exclusive", "write_lock"))]
    write,
    #[doc(alias = "try_lock_exclusive")]
    try_write,
    #[doc(alias = "write_timeout")]
    try_write_for,
    errors,
}

with_method! {
    RwLock::read_with -> ReadGuard, made: r#"rw_lock("catalog")"#,
    over: read, token: last_writer,
    /// After a loss, a writer may have changed the data during the read.
    #[doc(alias = "with_read")]
    about,
}

with_method! {
    RwLock::write_with -> WriteGuard, made: r#"rw_lock("catalog")"#,
    over: write, token: fencing_token,
    #[doc(alias = "with_write")]
    about,
}
