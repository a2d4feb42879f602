//! A lock for a limited number of holders.

use std::fmt;

use crate::config::PERMITS_MAX;
use crate::error::{AcquireError, ReleaseError, Released};
use crate::inspection::Inspection;
use crate::kinds::methods::{LockHandle, lock_methods, named, setters, with_method};
use crate::lock::{Hold, LockGuard, WaitLimit, contains};
use crate::manager::LockManager;
use crate::wire::LockCommands;

/// A number of permits shared by the whole fleet: at most that many holders at a time, under the
/// conditions of a mutex.
///
/// A cheap description, made by [`LockManager::semaphore`](crate::LockManager::semaphore), without
/// any state of a hold. Each hold is a [`Permit`].
///
/// Each permit is a lock of its own on a majority of the nodes, its *slot*, with its own fencing
/// counter. The permit of a crashed holder returns after its ttl, renewal works as for a mutex, and
/// there is no count that could go wrong.
/// [`guide::other_locks`](crate::guide::other_locks#semaphore) has more, also why nodes do not
/// count holders.
///
/// The number is in the description alone. If processes differ, the largest number counts.
#[derive(Clone)]
pub struct Semaphore {
    inner: LockHandle,
    permits: usize,
}

impl LockManager {
    /// Describes a semaphore called `name`, with this number of permits for the whole fleet. Does
    /// not block; contacts no node.
    ///
    /// Names are as for [`mutex`](LockManager::mutex), and a semaphore shares nothing with a lock
    /// of the same name. 1 to 256 permits; another number is an error when a permit is taken. Use
    /// the same number in all processes: otherwise the largest counts.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// let permit = locks.semaphore("mail-server", 5).acquire()?;
    /// // At most five in the fleet are here.
    /// drop(permit);
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[must_use]
    #[doc(alias = "rate_limit")]
    pub fn semaphore(&self, name: impl AsRef<[u8]>, permits: usize) -> Semaphore {
        let name = name.as_ref();
        let slots = permits.min(PERMITS_MAX);
        let commands = |prefix: &[u8], ttls| LockCommands::semaphore(prefix, name, slots, ttls);
        Semaphore {
            inner: LockHandle::new(&self.engine, name, commands),
            permits,
        }
    }
}

impl Semaphore {
    /// The number of permits in this description.
    #[must_use]
    pub fn permits(&self) -> usize {
        self.permits
    }

    /// The state of each slot on the nodes: the holder of its permit, and for how long. For people,
    /// health pages and command lines.
    ///
    /// One [`Inspection`] per permit of this description, as from
    /// [`Mutex::inspect`](crate::Mutex::inspect), in the order of the [slots](Permit::slot).
    /// Waiting calls wait for any slot, and each slot counts them.
    /// [`Admin::release`](crate::Admin::release) removes the permit of an inspected holder.
    ///
    /// Changes nothing. Blocks until the nodes have answered for each slot. A failing node delays
    /// the call once, for at most the [response timeout](crate::Builder::response_timeout), and the
    /// [connect timeout](crate::Builder::connect_timeout) for a node without a connection.
    ///
    /// # Errors
    ///
    /// An invalid name or number, a manager that was [shut down](crate::LockManager::shutdown), or
    /// a forked process. A failing node is no error: its [rows](Inspection::nodes) have the reason.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// let slots = locks.semaphore("mail-server", 5).inspect()?;
    /// let free = slots.iter().filter(|it| it.state() == quorlock::inspection::LockState::Free);
    /// println!("{} are free", free.count());
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    pub fn inspect(&self) -> Result<Vec<Inspection>, AcquireError> {
        self.check_permits()?;
        let slots: Vec<_> = (0..=u8::MAX)
            .take(self.permits)
            .map(|slot| (self.name(), Some(slot)))
            .collect();
        self.inner.inspect_each(&slots)
    }

    fn check_permits(&self) -> Result<(), AcquireError> {
        if self.permits == 0 || PERMITS_MAX < self.permits {
            return Err(AcquireError::BadPermits {
                permits: self.permits,
                max: PERMITS_MAX,
            });
        }
        Ok(())
    }

    fn take(&self, patience: WaitLimit) -> Result<Permit, AcquireError> {
        self.check_permits()?;
        self.inner.take(patience).map(|guard| Permit { guard })
    }
}

named!(Semaphore);
setters!(Semaphore);

lock_methods! {
    Semaphore::take -> Permit, made: r#"semaphore("mail-server", 5)"#,
    inside: "At most five in the fleet are here.", doing: "talking to the mail server",
    /// `Held` means that all permits are taken. A try of a nearly full semaphore also returns it if
    /// nodes granted different slots in each of its rounds.
    about,
    acquire,
    try_acquire,
    try_acquire_for,
    /// - [`BadPermits`](AcquireError::BadPermits): likewise.
    errors,
}

with_method! {
    Semaphore::with -> Permit, made: r#"semaphore("mail-server", 5)"#,
    over: acquire, token: fencing_token,
    about,
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.inner.spec.name)
            .field("permits", &self.permits)
            .field("ttl", &self.inner.spec.given_ttl)
            .finish_non_exhaustive()
    }
}

/// One permit of a [`Semaphore`], until it is dropped.
///
/// It is a [`LockGuard`] in all but its [`slot`](Permit::slot), and can be lent as one.
#[must_use = "a permit that is not bound to a name is given back at once: write `let _permit = …`, \
    not `let _ = …`"]
#[doc(alias("SemaphorePermit", "SemaphoreGuard"))]
pub struct Permit {
    guard: LockGuard,
}

impl Permit {
    /// The number of this permit, from 0. Does not block.
    ///
    /// [Fencing tokens](LockGuard::fencing_token) grow with the holders of one slot. Storage that
    /// rejects paused holders keeps the largest token *of each slot*.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.guard.slot().map_or(0, usize::from)
    }

    /// Releases the permit and returns the result: see [`Hold::release`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.guard.release()
    }
}

contains! { Permit: LockGuard, guard; }

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("slot", &self.slot())
            .field("guard", &self.guard)
            .finish()
    }
}
