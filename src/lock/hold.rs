//! The hold behind every guard, and the guard of a lock with one holder.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::{Engine, HoldInner, LostReceiver};
use crate::error::{ExtendError, Lost, LostReason, ReleaseError, Released};
use crate::ids::FencingToken;
use crate::time::{self, About};

/// One hold of a lock of any kind: the common part of all guards.
///
/// Every guard dereferences to it, so a function that takes `&Hold` accepts a
/// [`LockGuard`](crate::LockGuard), a [`ReadGuard`](crate::ReadGuard), a
/// [`WriteGuard`](crate::WriteGuard), a [`Permit`](crate::Permit) and a
/// [`ReentrantGuard`](crate::ReentrantGuard). All but the last convert into it, to be kept side by
/// side.
///
/// A thread of the manager extends the lock while the hold exists, unless the lock was taken with
/// [`renew(false)`](crate::Mutex::renew), up to the [maximum hold](crate::Builder::max_hold) if one
/// is set. A lock can be *lost* all the same: a majority of the nodes fails, or this process is
/// stopped for longer than the ttl. Then every method here reports the loss, and
/// [`lost`](Hold::lost) and [`on_lost`](Hold::on_lost) announce it.
///
/// # Drop
///
/// Dropping releases the lock on every node and waits until a majority has confirmed. After the
/// scope the lock is free. The drop blocks for one [response
/// timeout](crate::Builder::response_timeout) at most, usually for one round trip. It never panics,
/// also while the thread unwinds. Keys of a lost lock stay on the nodes until the drop or until
/// they expire. Call [`release`](Hold::release) instead for the result of the release.
///
/// While the manager [shuts down](crate::LockManager::shutdown), a drop and every method here
/// except `lost` and `on_lost` block until all releases are written, within the [shutdown
/// grace](crate::Builder::shutdown_grace).
///
/// A hold can be sent to another thread and dropped there. It keeps the manager's threads alive. If
/// the manager is dropped first, the drop of the last hold also [shuts
/// down](crate::LockManager::shutdown) and blocks for up to the [shutdown
/// grace](crate::Builder::shutdown_grace). In a child process after `fork` the lock is not held,
/// and a drop does nothing.
#[must_use = "a hold that is not bound to a name releases the lock at once: write `let _hold = …`, \
    not `let _ = …`"]
pub struct Hold {
    pub(crate) lock: Arc<HoldInner>,
    /// `None` once released.
    engine: Option<Arc<Engine>>,
}

// A panic beside a guard changes nothing of the hold: see `LockManager`.
impl UnwindSafe for Hold {}
impl RefUnwindSafe for Hold {}

impl Hold {
    pub(crate) fn new(engine: Arc<Engine>, lock: Arc<HoldInner>) -> Hold {
        Hold {
            lock,
            engine: Some(engine),
        }
    }

    /// The slot of a semaphore.
    pub(crate) fn slot(&self) -> Option<u8> {
        self.lock.spec.commands.slot
    }

    /// The name of the lock, without the manager's prefix; of [several names](crate::MultiLock),
    /// all of them, joined by `", "`. Does not block.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.lock.spec.name.as_bytes()
    }

    /// Whether the lock is held right now.
    ///
    /// Does not block, except during a [shutdown](Hold#drop), and contacts no node: the answer
    /// comes from the clock and from earlier confirmations. The process can be paused between this
    /// call and your next step; only storage that checks the [fencing
    /// token](crate::LockGuard::fencing_token) closes that gap.
    #[must_use]
    #[doc(alias("is_held", "is_locked"))]
    pub fn is_valid(&self) -> bool {
        self.check().is_ok()
    }

    /// Like [`is_valid`](Hold::is_valid), as a result: for `guard.check()?` between the steps of a
    /// job.
    ///
    /// # Errors
    ///
    /// The loss, with the name of the lock.
    pub fn check(&self) -> Result<(), Lost> {
        self.lease_left().map(drop)
    }

    fn lease_left(&self) -> Result<Duration, Lost> {
        self.lock.remaining().inspect_err(|_| self.await_shutdown())
    }

    /// A loss by shutdown is reported after its releases are written: the process may end once a
    /// caller learns of the loss.
    fn await_shutdown(&self) {
        if let Some(engine) = &self.engine {
            engine.await_shutdown();
        }
    }

    /// Lease left unless the lock is extended; zero if it was lost. Blocks as `is_valid` does.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease_left().unwrap_or(Duration::ZERO)
    }

    /// The end of the lease unless the lock is extended; in the past if it was lost. Blocks as
    /// `is_valid` does.
    ///
    /// For code that takes a deadline. On some systems an [`Instant`] does not count time in
    /// suspend, so code that may run across a suspend should also call
    /// [`is_valid`](Hold::is_valid).
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        let now = time::tick();
        now.checked_add(self.remaining()).unwrap_or(now)
    }

    /// A channel that announces the loss of the lock. Does not block.
    ///
    /// It gets one message if the lock is lost, or was lost before. It closes without a message
    /// when the lock is released. Use it in `crossbeam_channel::select!` beside the channels of the
    /// work (with `crossbeam-channel = "0.5"` among your dependencies), or alone:
    /// `guard.lost().recv_timeout(pause)` is a pause that ends early if the lock is lost. Each call
    /// makes a new channel.
    #[must_use]
    #[doc(alias("lost_receiver", "lost_channel"))]
    pub fn lost(&self) -> LostReceiver {
        self.lock.lost(false)
    }

    /// A channel that warns before the loss of the lock, while there is time for a clean-up. Does
    /// not block.
    ///
    /// It gets one message if no extension was confirmed until a third of the
    /// [ttl](crate::Builder::ttl) was left, within the pause of the next extension. The message is
    /// the imminent loss. A loss without a warning, such as [`LostReason::Gone`], is a message as
    /// well, so a leader needs no second channel. In all other ways it is like
    /// [`lost`](Hold::lost), and closes without a message when the lock is released.
    ///
    /// A late extension can still save the lock after the message. A lock [without
    /// renewal](crate::Mutex::renew) has no warning, nor has the [maximum
    /// hold](crate::Builder::max_hold): their end is known. See [`valid_until`](Hold::valid_until).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
    /// use std::time::Duration;
    ///
    /// let leader = locks.mutex("leader").lock()?;
    /// let expiring = leader.expiring();
    /// while expiring.recv_timeout(Duration::from_millis(100)).is_err() {
    ///     // One step of the leader's work.
    /// #   break;
    /// }
    /// // A third of the ttl is left for the clean-up.
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[must_use]
    pub fn expiring(&self) -> LostReceiver {
        self.lock.lost(true)
    }

    /// Calls `callback` once if the lock is lost; at once if that has happened already. Does not
    /// block.
    ///
    /// Callbacks run one after another on a thread of the manager, with nothing locked. A callback
    /// may block and use the manager; it then delays other callbacks and nothing else. A panic is
    /// caught and logged. When the lock is released the callback is dropped. A shutdown still
    /// starts due callbacks and does not wait for them.
    pub fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        self.lock.on_lost(Box::new(callback));
    }

    /// Extends the lock so that it lasts at least `ttl` from now, less the margin; never shortens
    /// it.
    ///
    /// Blocks for one round trip, at most one response timeout, and the connect timeout if nodes
    /// reconnect. Needed for locks without renewal, or before a step that must not be interrupted
    /// by an outage shorter than `ttl`. A later renewal uses the lock's own ttl and does not
    /// shorten this one. Whole milliseconds, rounded down.
    ///
    /// # Errors
    ///
    /// - [`ExtendError::Lost`]: the lock was lost, before or now.
    /// - [`ExtendError::NoQuorum`]: too few nodes confirmed. The lock is still held until its old
    ///   end, and until the new one once a late majority confirms.
    /// - [`ExtendError::BadTtl`]: `ttl` is outside the limits of
    ///   [`Builder::ttl`](crate::Builder::ttl).
    #[doc(alias("renew", "refresh"))]
    pub fn extend(&self, ttl: Duration) -> Result<(), ExtendError> {
        self.lock.extend(ttl).inspect_err(|_| self.await_shutdown())
    }

    /// Keeps the lock for `time` from now at least, whatever becomes of the program: no caller gets
    /// it before, this manager's included. For jobs that must not run again on a machine with a
    /// late clock.
    ///
    /// Blocks like [`extend`](Hold::extend), and extends the lock likewise, by its ttl at least: a
    /// majority of the nodes confirms keys that live for `time` on their clocks. From then on a
    /// drop or [`release`](Hold::release) ends the hold here at once and does not block, and the
    /// manager releases the lock on the nodes when `time` is over. If the program or the manager
    /// ends earlier, or the lock is lost, the keys expire by themselves: after `time`, or one
    /// [ttl](crate::Builder::ttl) after the last extension if that is later. A shorter `time` in a
    /// second call changes nothing.
    ///
    /// For every kind of lock: readers keep writers out, and a permit stays taken. An operator's
    /// [`Admin::release`](crate::Admin::release) still takes the lock.
    ///
    /// # Errors
    ///
    /// As for [`extend`](Hold::extend); then a release frees the lock as without this call. `time`
    /// is at most the [`max_ttl`](crate::Builder::max_ttl), rounded down to whole milliseconds on
    /// the nodes.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn run(locks: &quorlock::LockManager) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let guard = locks.mutex("nightly-report").try_lock()?;
    /// guard.keep_for(Duration::from_secs(10))?;
    /// // The job, which may be over in an instant.
    /// drop(guard);
    /// assert!(locks.mutex("nightly-report").try_lock().unwrap_err().is_held());
    /// # Ok(())
    /// # }
    /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[doc(alias = "lock_at_least_for")]
    pub fn keep_for(&self, time: Duration) -> Result<(), ExtendError> {
        // Not the clock of leases: a step of the wall clock would shorten the time.
        let until = time::deadline(time);
        // The ttl is never too short for an extension.
        self.extend(time.max(self.lock.spec.ttl()))?;
        self.lock.keep_until(until);
        // RACE: T1, this thread, extends the lock; T2, a shutdown, releases it; T1 notes the time,
        // which T2 has not seen. Therefore T1 looks at the lease afterwards.
        Ok(self.check()?)
    }

    /// Releases the lock and returns the result. Blocks for one round trip, at most one response
    /// timeout.
    ///
    /// A lock that [has to stay](Hold::keep_for) is released later. The result then has the nodes
    /// that confirmed the time.
    ///
    /// # Errors
    ///
    /// - [`ReleaseError::Lost`]: the lock was lost earlier, so the work was not protected to its
    ///   end. Or the release discovers the loss: too many of the confirming nodes no longer hold
    ///   the lock, and no majority is left. Listeners are notified too.
    /// - [`ReleaseError::NotConfirmed`]: no majority confirmed in time. The release stays queued
    ///   for the other nodes. Where it never arrives, the key expires within one ttl.
    #[doc(alias = "unlock")]
    pub fn release(mut self) -> Result<Released, ReleaseError> {
        self.end()
    }

    /// Ends the hold, once. In a forked child and after a shutdown the hold is not the caller's to
    /// end.
    fn end(&mut self) -> Result<Released, ReleaseError> {
        // Only a drop finds none, and does not look at the error.
        let engine = self.engine.take();
        engine
            .filter(|it| !it.shared.process.is_forked())
            .ok_or_else(|| self.lock.lost_by(LostReason::Forked))?
            .count(|| self.lock.release())
            .unwrap_or_else(|| Err(self.lock.lost_by(LostReason::ShutDown).into()))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The journal has a failure.
        let _ = self.end();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.lock.spec.name)
            .field("token", &self.lock.token)
            .field("remaining", &format_args!("{}", About(self.remaining())))
            .finish_non_exhaustive()
    }
}

/// Holds a lock until it is dropped: a [`Hold`] with a fencing token.
#[doc(alias("MutexGuard", "Guard"))]
#[must_use = "a guard that is not bound to a name releases the lock at once: write `let _guard = \
    …`, not `let _ = …`"]
#[derive(Debug)]
pub struct LockGuard(pub(crate) Hold);

impl LockGuard {
    /// The fencing token of this hold: larger than that of every earlier holder of the lock. Does
    /// not block.
    #[must_use]
    #[doc(alias("token", "fencing"))]
    pub fn fencing_token(&self) -> FencingToken {
        self.0.lock.token
    }

    /// Releases the lock and returns the result: see [`Hold::release`].
    ///
    /// # Errors
    ///
    /// As for [`Hold::release`].
    #[doc(alias = "unlock")]
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.0.release()
    }
}

/// Guards that are what they contain, and more.
macro_rules! contains {
    ($($guard:ident: $content:ident, $place:tt;)*) => {$(
        impl From<$guard> for Hold {
            fn from(guard: $guard) -> Self {
                guard.$place.into()
            }
        }

        impl ::std::ops::Deref for $guard {
            type Target = $content;

            fn deref(&self) -> &$content {
                &self.$place
            }
        }
    )*};
}
pub(crate) use contains;

contains! { LockGuard: Hold, 0; }
