//! A lock that its holding thread can take again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::{AcquireError, Lost, LostReason, ReleaseError, Released};
use crate::ids::LockName;
use crate::kinds::methods::{LockHandle, inspected, mutex_methods, named, setters, with_method};
use crate::kinds::mutex::Mutex;
use crate::lock::{LockGuard, WaitLimit};
use crate::manager::LockManager;

/// A lock with one holding thread at a time, in the whole fleet. That thread can take it again.
///
/// For code that calls itself, or calls other code with the same lock. A cheap description, made by
/// [`LockManager::reentrant_mutex`](crate::LockManager::reentrant_mutex). Clone it or share it
/// between threads: it has no state of a hold. Each call that takes the lock returns a
/// [`ReentrantGuard`], which stays in its thread. The drop of the thread's last guard releases the
/// lock, in any order.
///
/// Descriptions with the same name are the same lock, as with [`Mutex`]. On one thread they share
/// one *hold* if they belong to the same manager or its clones; two managers are two owners. A
/// plain `Mutex` of the same name is the same lock on the nodes and ignores the holds of the
/// thread: a thread that holds one of the two and takes the other waits for itself.
///
/// # Taking it again
///
/// The holding thread gets the lock at once, without a command to any node and with the same
/// [fencing token](LockGuard::fencing_token). Time limits and cancellation do not matter then.
///
/// One exception: if less than a third of the [ttl](ReentrantMutex::ttl) of this description is
/// left, the call first extends the lock by that ttl, not beyond the [maximum
/// hold](crate::Builder::max_hold). This blocks like [`extend`](crate::Hold::extend). If too few
/// nodes confirm, the call still succeeds, because the lock is held until its previous end: see
/// [`remaining`](crate::Hold::remaining). In all other ways the hold stays as it was first taken,
/// with its own ttl and renewal.
///
/// A lost hold is not taken again: the call returns [`AcquireError::HoldLost`] until all guards of
/// the hold are dropped. Otherwise the outer code would seem to have held the lock all along.
///
/// The setters apply to the thread's first guard. For later ones only the
/// [ttl](ReentrantMutex::ttl) counts, as above.
///
/// ```
/// use quorlock::{AcquireError, LockManager};
///
/// fn write_report(locks: &LockManager) -> Result<(), AcquireError> {
///     let _guard = locks.reentrant_mutex("nightly-report").lock()?;
///     write_page(locks, 1)
/// }
///
/// /// Also called by others, who do not hold the lock.
/// fn write_page(locks: &LockManager, page: u32) -> Result<(), AcquireError> {
///     let guard = locks.reentrant_mutex("nightly-report").lock()?;
///     println!("page {page}, {} guards of this thread", guard.holds());
///     Ok(())
/// }
/// # write_report(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
/// ```
#[derive(Clone)]
pub struct ReentrantMutex {
    inner: LockHandle,
}

impl LockManager {
    /// Describes the lock called `name`, for code that may hold it already: the holding thread gets
    /// it again. Does not block; contacts no node.
    ///
    /// On the nodes it is the lock [`mutex(name)`](LockManager::mutex), with the same rules for
    /// names. A thread that holds the `mutex` and takes the `reentrant_mutex` of the same name, or
    /// the reverse, waits for itself.
    #[must_use]
    pub fn reentrant_mutex(&self, name: impl AsRef<[u8]>) -> ReentrantMutex {
        ReentrantMutex {
            inner: self.mutex(name).inner,
        }
    }
}

impl ReentrantMutex {
    fn take(&self, patience: WaitLimit) -> Result<ReentrantGuard, AcquireError> {
        self.take_with(|it| it.take(patience))
    }

    /// Calls `acquire` unless the thread holds the lock.
    fn take_with(
        &self,
        acquire: impl FnOnce(&LockHandle) -> Result<LockGuard, AcquireError>,
    ) -> Result<ReentrantGuard, AcquireError> {
        // Also for a held lock: otherwise the same call would fail on some days only.
        self.inner.check()?;
        let key = Key {
            engine: Arc::as_ptr(&self.inner.engine),
            name: self.inner.spec.name.clone(),
        };
        match find(&key)? {
            Some(hold) => self.take_again(ReentrantGuard { hold }),
            None => Ok(ReentrantGuard {
                hold: enter(key, acquire(&self.inner)?)?,
            }),
        }
    }

    /// Accepts one more guard, or drops it.
    fn take_again(&self, guard: ReentrantGuard) -> Result<ReentrantGuard, AcquireError> {
        let ttl = self.inner.spec.ttl();
        if is_low(guard.remaining(), ttl) {
            // Checked below, whatever comes of it.
            let _ = guard.extend(ttl);
        }
        // Whatever the result of the extension: without a confirmation the hold keeps its old end,
        // as its other guards do.
        guard.check().map_err(not_again)?;
        Ok(guard)
    }
}

named!(ReentrantMutex);
inspected!(ReentrantMutex, made: r#"reentrant_mutex("nightly-report")"#);
setters!(ReentrantMutex);

mutex_methods! {
    ReentrantMutex::take -> ReentrantGuard, made: r#"reentrant_mutex("nightly-report")"#,
    /// A thread that holds the lock [takes it again](ReentrantMutex#taking-it-again). That does not
    /// block, except for an extension. A lock of another thread, in any process, or of another
    /// manager counts as held by someone else.
    about,
    /// - [`AcquireError::HoldLost`]: this thread held the lock and has lost it. Drop its guards
    ///   first.
    /// - [`AcquireError::ThreadEnding`]: called by the destructor of a thread-local value, too
    ///   late.
    errors,
}

with_method! {
    ReentrantMutex::with -> ReentrantGuard, made: r#"reentrant_mutex("nightly-report")"#,
    over: lock, token: fencing_token,
    /// `work` can call it again: the lock is released with the thread's last guard. Inner and outer
    /// calls report a loss alike.
    about,
}

impl fmt::Debug for ReentrantMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReentrantMutex")
            .field(&Mutex {
                inner: self.inner.clone(),
            })
            .finish()
    }
}

/// One of the guards with which a thread holds a [`ReentrantMutex`].
///
/// Each of them dereferences to the [`LockGuard`] of the hold. The lock is held until the last
/// guard is dropped. That drop releases and blocks like the drop of a `LockGuard`; the others do
/// not block.
///
/// A guard stays in its thread:
///
/// ```compile_fail,E0277
/// fn can_be_sent<T: Send>() {}
/// can_be_sent::<quorlock::ReentrantGuard>(); // compiles with quorlock::LockGuard
/// ```
///
/// Lend its `LockGuard` to scoped threads that check whether the lock is still held.
///
/// In a child process after `fork` no guard is held, and dropping them there does nothing.
#[must_use = "a guard that is not bound to a name is dropped at once, and releases the lock if it \
    is the only one: write \
              `let _guard = …`, not `let _ = …`"]
pub struct ReentrantGuard {
    hold: Rc<ThreadHold>,
}

// As for a `LockGuard`. The thread's table is not borrowed while other code runs.
impl UnwindSafe for ReentrantGuard {}
impl RefUnwindSafe for ReentrantGuard {}

impl ReentrantGuard {
    /// Number of the thread's guards of this hold, including this one and forgotten ones. Does not
    /// block.
    #[must_use]
    pub fn holds(&self) -> u32 {
        u32::try_from(Rc::strong_count(&self.hold)).unwrap_or(u32::MAX)
    }

    /// Drops this guard and returns the result.
    ///
    /// The thread's last guard releases the lock. That blocks for one round trip, at most one
    /// response timeout. Otherwise the lock stays held, the result is `None`, and nothing blocks.
    ///
    /// # Errors
    ///
    /// - [`ReleaseError::Lost`]: the lock was lost earlier, so the work was not protected to its
    ///   end. Each guard of the hold reports this.
    /// - [`ReleaseError::NotConfirmed`]: this was the last guard, and no majority confirmed in
    ///   time. The release stays queued for the other nodes. Where it never arrives, the key
    ///   expires within one ttl.
    pub fn release(self) -> Result<Option<Released>, ReleaseError> {
        if self.holds() != 1 {
            return self.check().map(|()| None).map_err(ReleaseError::from);
        }
        Rc::into_inner(self.hold)
            .map(|hold| {
                // The thread must not find a hold whose release has begun.
                drop(hold.entry);
                hold.guard.release()
            })
            .transpose()
    }
}

impl Deref for ReentrantGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.hold.guard
    }
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantGuard")
            .field("holds", &self.holds())
            .field("guard", &self.hold.guard)
            .finish()
    }
}

/// Whether the lock is extended before it is taken again: less than a third of its ttl is left.
fn is_low(remaining: Duration, ttl: Duration) -> bool {
    remaining.saturating_mul(3) < ttl
}

/// Why a lost hold is not taken again. After a fork or a shutdown dropping guards does not help, so
/// the error is that of a thread without guards.
fn not_again(lost: Lost) -> AcquireError {
    match lost.reason {
        LostReason::Forked => AcquireError::Forked,
        LostReason::ShutDown => AcquireError::ShutDown,
        _ => AcquireError::HoldLost { lost },
    }
}

// The locks held by this thread, so that it can take them again.
//
// Invariant: an entry has a hold as long as the hold has a guard. The last guard removes the entry,
// so entries do not pile up. An entry without a hold does not count.
//
// The table is not borrowed while other code runs: a release blocks, ends managers and calls
// loggers, which may use the table.
thread_local! {
    static HOLDS: RefCell<BTreeMap<Key, Weak<ThreadHold>>> =
        const { RefCell::new(BTreeMap::new()) };
}

/// One lock of one manager. The prefix is the manager's, so the name identifies the key.
///
/// The address identifies the manager. Another manager could get the address of a dropped one, but
/// a hold keeps its manager alive, and an entry without a hold does not count.
#[derive(Clone, Eq, Ord, PartialEq, PartialOrd)]
struct Key {
    engine: *const Engine,
    name: LockName,
}

/// One hold, shared by the thread's guards, which its `Rc` counts.
struct ThreadHold {
    // Dropped first: a thread that is already releasing the lock does not hold it any more.
    entry: Entry,
    guard: LockGuard,
}

/// The place of a hold in the table; removes it when dropped.
struct Entry(Key);

impl Drop for Entry {
    fn drop(&mut self) {
        // A guard in another thread-local may outlive the table. Then there is no entry to remove.
        let removed = HOLDS.try_with(|table| {
            let mut holds = table.borrow_mut();
            // Only an entry of this hold: after a loss, a logger may have taken the lock again.
            let is_over = holds.get(&self.0).is_some_and(|it| it.strong_count() == 0);
            is_over.then(|| holds.remove(&self.0))
        });
        drop(removed);
    }
}

/// This thread's hold of a lock. Make a guard of the result: its `Rc` counts.
fn find(key: &Key) -> Result<Option<Rc<ThreadHold>>, AcquireError> {
    let found = HOLDS.try_with(|it| it.borrow().get(key).and_then(Weak::upgrade));
    found.map_err(|_| AcquireError::ThreadEnding)
}

/// Enters a new hold.
fn enter(key: Key, guard: LockGuard) -> Result<Rc<ThreadHold>, AcquireError> {
    let hold = Rc::new(ThreadHold {
        entry: Entry(key.clone()),
        guard,
    });
    let replaced = HOLDS.try_with(|it| it.borrow_mut().insert(key, Rc::downgrade(&hold)));
    // Without an entry the thread would wait for its own hold: release it instead.
    replaced.map(drop).map_err(|_| AcquireError::ThreadEnding)?;
    Ok(hold)
}

/// Number of entries of this thread.
#[cfg(test)]
fn entries() -> usize {
    HOLDS.with(|it| it.borrow().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::NodeAddress;
    use crate::engine::{HoldInner, LockSpec, Won};
    use crate::lock::Hold;
    use crate::wire::{KeyTtls, LockCommands};

    const TTL: Duration = Duration::from_secs(10);

    /// A manager of a node that is never asked.
    fn engine() -> Arc<Engine> {
        let config = Config {
            response_timeout: Duration::from_millis(1),
            ..Config::default()
        };
        Arc::new(
            Engine::start(
                config,
                vec![NodeAddress::parse("redis://127.0.0.1:1").unwrap()],
            )
            .unwrap(),
        )
    }

    /// A lock that was won on no node; its release asks none.
    fn won(engine: &Arc<Engine>, token: u64) -> LockGuard {
        let spec = LockSpec::new(
            &engine.shared.config,
            b"x",
            LockCommands::mutex(b"", b"x", KeyTtls::default()),
        );
        let spec = Arc::new(LockSpec {
            renew: false,
            ..spec
        });
        let mut won = Won::just_now(&spec, TTL);
        won.win.token = token;
        let lock = HoldInner::new(Arc::clone(&engine.shared), token, won);
        let hold = Hold::new(Arc::clone(engine), Arc::new(lock));
        LockGuard(hold)
    }

    fn lock(engine: &Arc<Engine>, name: &str) -> ReentrantMutex {
        ReentrantMutex {
            inner: LockHandle::new(engine, name.as_bytes(), |prefix, ttls| {
                LockCommands::mutex(prefix, name.as_bytes(), ttls)
            }),
        }
    }

    fn hold(engine: &Arc<Engine>, name: &str, token: u64) -> ReentrantGuard {
        lock(engine, name)
            .take_with(|_| Ok(won(engine, token)))
            .unwrap()
    }

    #[test]
    fn a_thread_has_an_entry_for_each_of_its_holds_only() {
        let engines = [engine(), engine()];
        let before = entries();

        let guards: Vec<_> = engines
            .iter()
            .flat_map(|it| [hold(it, "a", 1), hold(it, "b", 2), hold(it, "b", 3)])
            .collect();
        assert_eq!(entries(), before + 4);
        assert_eq!(
            guards
                .iter()
                .map(|it| it.fencing_token().get())
                .collect::<Vec<_>>(),
            [1, 2, 2, 1, 2, 2]
        );

        for (i, guard) in guards.into_iter().enumerate() {
            if i % 2 == 0 {
                drop(guard);
            } else {
                let _ = guard.release();
            }
        }
        assert_eq!(entries(), before);
    }

    #[test]
    fn a_hold_that_ends_leaves_the_place_of_a_later_one_alone() {
        let engine = engine();
        let key = || Key {
            engine: Arc::as_ptr(&engine),
            name: LockName::new(b"x"),
        };
        let earlier = enter(key(), won(&engine, 1)).ok().unwrap();
        let later = enter(key(), won(&engine, 2)).ok().unwrap();

        drop(earlier);

        let found = find(&key()).ok().unwrap().unwrap();
        assert!(Rc::ptr_eq(&found, &later));
    }

    #[test]
    fn less_than_a_third_of_the_ttl_is_low() {
        let ms = Duration::from_millis;
        assert!(is_low(ms(99), ms(300)) && is_low(Duration::ZERO, ms(300)));
        assert!(!is_low(ms(100), ms(300)) && !is_low(Duration::MAX, ms(300)));
    }

    #[test]
    fn f1_a_loss_by_a_fork_is_the_error_forked() {
        let lost = |reason| Lost {
            name: LockName::new(b"report"),
            reason,
        };
        assert_eq!(not_again(lost(LostReason::Forked)), AcquireError::Forked);
        assert_eq!(
            not_again(lost(LostReason::ShutDown)),
            AcquireError::ShutDown
        );
        let gone = lost(LostReason::Gone);
        assert_eq!(
            not_again(gone.clone()),
            AcquireError::HoldLost { lost: gone }
        );
    }
}
