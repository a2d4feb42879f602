//! Distributed locks for blocking Rust code, on a majority of independent Redis or Valkey servers
//! (Redlock).
//!
//! By default a manager extends each lock until you drop its guard. Each holder gets a fencing
//! token. Waiting calls are served in order of arrival; [`guide::waiting`] lists the exceptions.
//! There is no async runtime: calls block their thread, and the documentation of each call gives
//! the limit, if any.
//!
//! ```no_run
//! use std::time::Duration;
//! use quorlock::LockManager;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let urls = ["redis://locks-1", "redis://locks-2", "redis://locks-3"];
//!     let locks = LockManager::builder(urls).build()?;
//!     let report = locks.mutex("nightly-report");
//!
//!     let guard = report.try_lock_for(Duration::from_secs(30))?;
//!     println!("the only holder, with token {}", guard.fencing_token());
//!     guard.check()?; // between the steps of a long job
//!     guard.release()?; // or drop the guard
//!     Ok(())
//! }
//! ```
//!
//! On new servers the first lock takes up to eleven seconds by default. New and restarted servers
//! may have lost locks, so they do not vote until these locks have expired:
//! [`Builder::quarantine`]. Allow half a minute, or call [`Mutex::lock`].
//!
//! # What a lock guarantees
//!
//! While [`Hold::is_valid`] returns `true`, nobody else holds the lock, under these conditions:
//!
//! - servers keep their data, or lose it visibly (a restart or a flush),
//! - no server clock is stepped forward, or gains more than the [`Builder::clock_margin`] within a
//!   ttl,
//! - servers are independent: no replica takes over behind an address, no key is evicted or
//!   deleted,
//! - all programs use the same servers, database number and prefix.
//!
//! A process can pause between that check and its next write, for longer than the lock lasts. So
//! pass the [`LockGuard::fencing_token`] to your storage and let the storage reject smaller tokens.
//! Without that, make sure that an overlap costs only repeated work. [`guide::safety`] has the
//! details.
//!
//! # Guide
//!
#![doc = include_str!("guide/contents.md")]
//!
//! # Cargo features
//!
//! | feature | default | adds |
//! | --- | --- | --- |
//! | `tls` | off | `rediss://` URLs and the type `Tls`. Needs a C compiler |
//! | `metrics` | off | `observer::MetricsObserver`, for the crate `metrics` |
//!
//! Two more crates: `quorlock-cli` installs the command `quorlock`; `quorlock-testing` has servers
//! for your tests.
//!
//! # Threads
//!
//! | thread | number |
//! | --- | --- |
//! | `quorlock-n0`, `quorlock-n1`, … | one per node |
//! | `quorlock-n0-watch0`, … | for a node of several servers: one per member, to find the primary |
//! | `quorlock-renewal` | one, for all held locks |
//! | `quorlock-events` | one, for log lines and the observer |
//! | `quorlock-on-lost` | one, from the first due [`Hold::on_lost`] callback on |
//!
//! [`Builder::build`] starts the node, renewal and events threads. They end with the last handle or
//! guard of the manager, within the [`Builder::shutdown_grace`]. A thread that is still busy then
//! is left behind, and the log reports it.
//!
//! # Log levels
//!
//! Through the crate `log`, on the thread `quorlock-events`. A slow logger costs lines
//! ([`Stats::dropped_events`]), and nothing else. A shutdown waits for the queued lines within its
//! grace: end a manager before the process exits.
//!
//! | level | contents |
//! | --- | --- |
//! | error | a caught panic, in this crate or in a callback, or a failure of the operating system |
//! | warn | act: a lock is lost or not extended, no majority votes, a server needs other settings |
//! | info | once per change: a node went down, came back, or lost its vote; a warning has ended |
//! | debug | the result of each round; further failures of a node that is down |
//! | trace | every reply |
//!
//! [`guide::operations`] lists the lines worth an alert and what to do.
//!
//! Passwords never appear in logs, errors or `Debug` output. Owner values are shortened there.

// docs.rs sets this: what needs a feature says so there.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    all(quorlock_shuttle, test),
    allow(
        dead_code,
        unused_imports,
        reason = "the checker stands in for parts of the crate"
    )
)]
#![warn(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing
)]
#![warn(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::dbg_macro
)]

mod answer;
mod builder;
mod call;
mod config;
mod engine;
pub mod error;
pub mod fence;
pub mod guide;
mod hold;
mod ids;
pub mod inspection;
mod kinds;
mod lock;
mod logic;
mod manager;
pub mod observer;
pub mod once;
mod session;
mod stats;
mod sys;
#[cfg(test)]
mod tests;
mod time;
mod tls;
mod wire;

pub use builder::{Builder, Node};
pub use engine::{CancelHandle, LostReceiver};
#[doc(inline)]
pub use error::{
    AcquireError, BuildError, ErrorKind, ExtendError, Lost, LostReason, ReleaseError, Released,
    WithError,
};
pub use ids::{FencingToken, LockName, NodeId};
pub use kinds::{MultiLock, Mutex, Permit, ReentrantGuard, ReentrantMutex, RwLock, Semaphore};
pub use lock::{Hold, LockGuard, ReadGuard, WriteGuard};
pub use manager::{Admin, LockManager};
pub use once::{Once, OnceError};
pub use stats::{NodeStats, Stats};
#[cfg(feature = "tls")]
pub use tls::Tls;
