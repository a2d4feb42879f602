//! A lock with its manager, and the methods of every kind, written and documented once.
//!
//! A kind has a field `inner`, a [`LockHandle`], and for each of its guards a `fn(&self, WaitLimit)
//! -> Result<Guard, AcquireError>`. Its file imports `AcquireError` and `WaitLimit`. Parameters of
//! the macros:
//!
//! - `made`: the call on a manager that makes a lock of the kind, for examples
//! - `inside`: a comment in the example of the held lock
//! - `doing`: the text that the example prints
//! - `about`: docs of the kind for all of its methods
//! - `errors`: further errors

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Engine, LockSpec};
use crate::error::{AcquireError, ReleaseError, WithError};
use crate::inspection::Inspection;
use crate::lock::{LockGuard, WaitLimit, acquire};
use crate::time;
use crate::wire::{KeyTtls, LockCommands};

/// A lock, and the manager that takes it.
#[derive(Clone)]
pub(crate) struct LockHandle {
    pub(crate) engine: Arc<Engine>,
    pub(crate) spec: Arc<LockSpec>,
}

// A description never changes once it is made: see `LockManager`.
impl UnwindSafe for LockHandle {}
impl RefUnwindSafe for LockHandle {}

impl LockHandle {
    /// The lock called `name`. `commands` gets the manager's prefix.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        name: &[u8],
        commands: impl FnOnce(&[u8], KeyTtls) -> LockCommands,
    ) -> LockHandle {
        let config = &engine.shared.config;
        let mut commands = commands(&config.prefix, LockSpec::key_ttls(config));
        commands.label = config.owner_label.clone();
        let spec = Arc::new(LockSpec::new(config, name, commands));
        LockHandle {
            engine: Arc::clone(engine),
            spec,
        }
    }

    pub(crate) fn spec_mut(&mut self) -> &mut LockSpec {
        Arc::make_mut(&mut self.spec)
    }

    pub(crate) fn name(&self) -> &[u8] {
        self.spec.name.as_bytes()
    }

    /// Whether there can be such a lock. Asks no node.
    pub(crate) fn check(&self) -> Result<(), AcquireError> {
        self.spec.check(&self.engine.shared.config)
    }

    /// The state of this lock on the nodes.
    pub(crate) fn inspect(&self) -> Result<Inspection, AcquireError> {
        self.engine.shared.check_name(self.name())?;
        self.engine
            .operate(|shared| shared.inspect(self.name(), None))
    }

    /// The same for each of these names, or slots of a name. An unresponsive node delays the first
    /// answer only: it is skipped until it responds.
    pub(crate) fn inspect_each(
        &self,
        each: &[(&[u8], Option<u8>)],
    ) -> Result<Vec<Inspection>, AcquireError> {
        each.iter()
            .try_for_each(|(name, _)| self.engine.shared.check_name(name))?;
        self.engine.operate(|shared| {
            each.iter()
                .map(|(name, slot)| shared.inspect(name, *slot))
                .collect()
        })
    }

    // Not `acquire`: rustc would suggest it where `lock` is called by that name.
    pub(crate) fn take(&self, patience: WaitLimit) -> Result<LockGuard, AcquireError> {
        let hold = acquire(&self.engine, &self.spec, patience)?;
        Ok(LockGuard(hold))
    }
}

/// `name`.
macro_rules! named {
    ($kind:ident) => {
        impl $kind {
            /// The name, without the manager's prefix.
            #[must_use]
            pub fn name(&self) -> &[u8] {
                self.inner.name()
            }
        }
    };
}

/// `inspect`, of one name.
macro_rules! inspected {
    ($kind:ident, made: $made:literal) => {
        impl $kind {
            /// The state of this lock on the nodes: its holder, the time left, and the waiting
            /// calls. For people, health pages and command lines.
            ///
            /// Changes nothing. Not a basis for work that the lock protects: the answer may be
            /// outdated when it arrives. Blocks until all nodes have answered, for the [response
            /// timeout](crate::Builder::response_timeout) at most, and the [connect
            /// timeout](crate::Builder::connect_timeout) for nodes without a connection.
            ///
            /// # Errors
            ///
            /// An invalid name, a manager that was [shut down](crate::LockManager::shutdown), or a
            /// forked process. A failing node is no error: its
            /// [row](crate::inspection::Inspection::nodes) has the reason.
            ///
            /// # Examples
            ///
            /// ```
            /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
            /// use quorlock::inspection::LockState;
            ///
            #[doc = concat!("let state = locks.", $made, ".inspect()?.state();")]
            /// if let LockState::Held { holder: Some(holder), .. } = state {
            ///     println!("held by {holder}");
            /// }
            /// # Ok(())
            /// # }
            /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
            /// ```
            #[doc(alias("is_locked", "status", "peek"))]
            pub fn inspect(&self) -> Result<crate::inspection::Inspection, AcquireError> {
                self.inner.inspect()
            }
        }
    };
}

/// [`Debug`](std::fmt::Debug), with the `name` or the `names`.
macro_rules! shown {
    ($kind:ident, $name:ident) => {
        impl ::std::fmt::Debug for $kind {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($kind))
                    .field(stringify!($name), &self.inner.spec.$name)
                    .field("ttl", &self.inner.spec.given_ttl)
                    .field("renew", &self.inner.spec.renew)
                    .finish_non_exhaustive()
            }
        }
    };
}

/// `ttl`, `renew`, `class`, `cancelled_by`.
macro_rules! setters {
    ($kind:ident) => {
        impl $kind {
            /// Sets the ttl of this lock. See [`Builder::ttl`](crate::Builder::ttl) for its meaning
            /// and limits.
            ///
            /// Default: the manager's. Checked when the lock is taken.
            #[must_use]
            pub fn ttl(mut self, ttl: ::std::time::Duration) -> $kind {
                self.inner.spec_mut().given_ttl = ttl;
                self
            }

            /// Sets whether a thread of the manager extends the lock while it is held.
            ///
            /// Without renewal the lock ends after its ttl: a fixed lease, for work with a hard
            /// limit. Its keys are extended up to that end in three cases only: soon after a
            /// hand-over, which sets a short life; after 50 ms, if a node with a vote lacks the
            /// lock; and after a forward step of a node's clock, which would end them earlier.
            ///
            /// Default: the manager's, see [`Builder::renew`](crate::Builder::renew).
            #[must_use]
            #[doc(alias("auto_renew", "auto_extend"))]
            pub fn renew(mut self, renew: bool) -> $kind {
                self.inner.spec_mut().renew = renew;
                self
            }

            /// Sets the class of this lock in metrics, such as `order` for locks named
            /// `order:4711`.
            ///
            /// An [`Observer`](crate::observer::Observer) gets name and class. Use the class as a
            /// metric label, and few classes.
            ///
            /// Default: none, which observers see as `other`.
            #[must_use]
            pub fn class(mut self, class: impl AsRef<str>) -> $kind {
                self.inner.spec_mut().class = Some(class.as_ref().into());
                self
            }

            /// Lets `handle` cancel waiting calls for this lock.
            ///
            /// Default: none.
            #[must_use]
            pub fn cancelled_by(mut self, handle: &crate::engine::CancelHandle) -> $kind {
                self.inner.spec_mut().cancel = Some(handle.clone());
                self
            }
        }
    };
}

/// The three calls that take the lock: `lock`, `try_lock`, `try_lock_for`, under the names of the
/// kind.
///
/// Each name has attributes of its own in front of it: its aliases.
macro_rules! lock_methods {
    (
        $kind:ident::$take:ident -> $guard:ty,
        made: $made:literal, inside: $inside:literal, doing: $doing:literal,
        $(#[$about:meta])* about,
        $(#[$lock_attr:meta])* $lock:ident,
        $(#[$try_attr:meta])* $try_lock:ident,
        $(#[$for_attr:meta])* $try_lock_for:ident,
        $(#[$errors:meta])* errors,
    ) => {
        impl $kind {
            /// Acquires the lock, waiting for as long as someone else holds it.
            ///
            /// Blocks without a limit while the lock is held. An outage ends the wait with an
            /// error: no majority of nodes for the [outage
            /// timeout](crate::Builder::outage_timeout), or at once if a majority refuses the login
            /// or a command, or is unsuitable. In an older outage the call makes one attempt and
            /// returns 100 ms after its beginning at the earliest.
            ///
            /// Calls are served in order of arrival, in the whole fleet, and a release wakes the
            /// next one. [`guide::waiting`](crate::guide::waiting) lists the exceptions.
            ///
            $(#[$about])*
            ///
            /// # Examples
            ///
            /// ```
            /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
            #[doc = concat!("let guard = locks.", $made, ".", stringify!($lock), "()?;")]
            #[doc = concat!("// ", $inside)]
            /// drop(guard);
            /// # Ok(())
            /// # }
            /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
            /// ```
            ///
            /// # Errors
            ///
            /// - [`AcquireError::NoQuorum`]: too many nodes failed for too long.
            /// - [`AcquireError::KeyInUse`]: something that is not a lock has this name.
            /// - [`AcquireError::Cancelled`]: the wait was ended from another thread.
            /// - [`AcquireError::ShutDown`]: the manager was shut down, before or during the wait.
            /// - [`AcquireError::NameTooLong`], [`AcquireError::NameReserved`],
            ///   [`AcquireError::BadTtl`]: the description cannot be used. Nothing was sent.
            /// - [`AcquireError::Forked`], [`AcquireError::NoRandomness`].
            $(#[$errors])*
            $(#[$lock_attr])*
            pub fn $lock(&self) -> Result<$guard, AcquireError> {
                self.$take(WaitLimit::Forever)
            }

            /// Acquires the lock if it is free.
            ///
            /// Blocks for one round trip. If nodes fail it blocks for the [connect
            /// timeout](crate::Builder::connect_timeout) and two [response
            /// timeouts](crate::Builder::response_timeout) at most. If this process has more calls
            /// under way than the nodes answer in time, the call waits one response timeout for its
            /// turn and then returns [`Busy`](AcquireError::Busy).
            ///
            /// A free lock with an earlier waiting call goes to that call, and counts as held.
            ///
            /// If contenders split the nodes so that nobody gets a majority, the call repeats the
            /// attempt up to three times, after a random part of the [retry
            /// delay](crate::Builder::retry_delay).
            ///
            $(#[$about])*
            ///
            /// # Errors
            ///
            #[doc = concat!("As for [`", stringify!($lock), "`](Self::", stringify!($lock),
                "), and besides:")]
            ///
            /// - [`AcquireError::Held`]: someone else holds it. Normal under contention. If it is
            ///   [this thread](crate::error::HeldBy::ThisThread), it is a mistake: one of its own
            ///   guards is in the way.
            /// - [`AcquireError::Busy`]: this process has too many calls under way. Nothing was
            ///   sent.
            /// - [`AcquireError::TooLate`]: a majority granted it, but nothing usable of the ttl
            ///   was left.
            ///
            /// # Examples
            ///
            /// ```
            /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::AcquireError> {
            #[doc = concat!("match locks.", $made, ".", stringify!($try_lock), "() {")]
            #[doc = concat!("    Ok(_guard) => println!(\"", $doing, "\"),")]
            ///     Err(err) if err.is_held() => println!("someone else is at it"),
            ///     Err(err) => return Err(err),
            /// }
            /// # Ok(())
            /// # }
            /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
            /// ```
            $(#[$try_attr])*
            pub fn $try_lock(&self) -> Result<$guard, AcquireError> {
                self.$take(WaitLimit::None)
            }

            /// Acquires the lock, waiting for at most `timeout` if someone else holds it.
            ///
            #[doc = concat!("Blocks. Returns within `timeout` plus the time of one [`",
                stringify!($try_lock), "`](Self::", stringify!($try_lock), "): a round that is")]
            /// under way at the end of the timeout is completed, so that nothing of it stays on the
            /// nodes. [`Duration::ZERO`](std::time::Duration::ZERO) makes one attempt. A timeout
            /// too long for the clock means no limit.
            ///
            /// An outage ends the wait earlier, after the [outage
            /// timeout](crate::Builder::outage_timeout). **In an older outage the call does not
            /// wait:** it makes one attempt and returns 100 ms after its beginning, or after
            /// `timeout` if that is shorter. A loop that logs the error and tries again makes ten
            /// rounds a second.
            ///
            $(#[$about])*
            ///
            /// # Errors
            ///
            #[doc = concat!("As for [`", stringify!($try_lock), "`](Self::", stringify!($try_lock),
                ").")]
            $(#[$for_attr])*
            pub fn $try_lock_for(
                &self,
                timeout: ::std::time::Duration,
            ) -> Result<$guard, AcquireError> {
                self.$take(crate::kinds::methods::patience(timeout))
            }

        }
    };
}

/// [`lock_methods`] with the usual names of a mutex, and the names in other crates as aliases.
macro_rules! mutex_methods {
    (
        $kind:ident::$take:ident -> $guard:ty, made: $made:literal,
        $(#[$about:meta])* about,
        $(#[$errors:meta])* errors,
    ) => {
        $crate::kinds::methods::lock_methods! {
            $kind::$take -> $guard, made: $made,
            inside: "Only one process in the fleet is here.", doing: "writing the report",
            $(#[$about])* about,
            #[doc(alias = "acquire")]
            lock,
            #[doc(alias("try_acquire", "lock_nowait"))]
            try_lock,
            #[doc(alias(
                "lock_timeout", "try_lock_timeout", "lock_for", "acquire_timeout",
                "blocking_timeout", "wait_time"
            ))]
            try_lock_for,
            $(#[$errors])* errors,
        }
    };
}

/// `with`, or the method of this name, over the waiting call. `token`: the method of the guard in
/// the example.
macro_rules! with_method {
    (
        $kind:ident::$with:ident -> $guard:ty, made: $made:literal,
        over: $lock:ident, token: $token:ident,
        $(#[$about:meta])* about,
    ) => {
        impl $kind {
            #[doc = concat!("Acquires the lock like [`", stringify!($lock), "`](Self::",
                stringify!($lock), "),")]
            /// calls `work`, and releases.
            ///
            #[doc = concat!("Blocks as `", stringify!($lock),
                "` does, then for the time of `work`,")]
            /// then for the release. If `work` panics the lock is released and the panic goes on.
            /// An unconfirmed release is logged, not returned.
            ///
            $(#[$about])*
            ///
            /// # Errors
            ///
            #[doc = concat!("- [`WithError::NotAcquired`](crate::error::WithError::NotAcquired):",
                " as for [`", stringify!($lock), "`](Self::", stringify!($lock),
                "); `work` was not called.")]
            /// - [`WithError::Lost`](crate::error::WithError::Lost): the lock was lost before
            ///   `work` returned. Its value is dropped. Keep a value in a variable outside of
            ///   `work` if you need it even then.
            ///
            /// # Examples
            ///
            /// ```
            /// # fn run(locks: &quorlock::LockManager) -> Result<(), quorlock::WithError> {
            #[doc = concat!("let pages = locks.", $made, ".", stringify!($with), "(|guard| {")]
            #[doc = concat!("    // Pass guard.", stringify!($token), "() to the storage.")]
            #[doc = concat!("    guard.", stringify!($token), "().get()")]
            /// })?;
            /// # let _ = pages;
            /// # Ok(())
            /// # }
            /// # run(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
            /// ```
            #[doc(alias("with_lock", "lock_with", "run", "using"))]
            pub fn $with<R>(
                &self,
                work: impl FnOnce(&$guard) -> R,
            ) -> Result<R, crate::error::WithError> {
                let guard = self.$lock()?;
                let value = work(&guard);
                crate::kinds::methods::finish_with(value, guard.release())
            }
        }
    };
}

pub(crate) use {inspected, lock_methods, mutex_methods, named, setters, shown, with_method};

/// A timeout too long for the clock means no limit.
pub(crate) fn patience(timeout: Duration) -> WaitLimit {
    time::tick()
        .checked_add(timeout)
        .map_or(WaitLimit::Forever, WaitLimit::Until)
}

/// The result of `with` after its closure returned `value`: a loss is an error, an unconfirmed
/// release is not.
pub(super) fn finish_with<R, T>(
    value: R,
    released: Result<T, ReleaseError>,
) -> Result<R, WithError> {
    if let Err(ReleaseError::Lost(lost)) = released {
        return Err(lost.into());
    }
    Ok(value)
}
