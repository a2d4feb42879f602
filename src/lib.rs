//! Locks shared by several processes, kept by a majority of independent Redis servers (the Redlock algorithm).
//!
//! For code without an async runtime: plain threads, command-line tools, tests that guard a shared resource with a
//! scope. Every call blocks its thread, and its documentation says for how long at most.
//!
//! ```no_run
//! use std::time::Duration;
//! use quorlock::LockManager;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = LockManager::builder(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]).build()?;
//! let report = locks.mutex("nightly-report");
//!
//! let guard = report.try_lock_for(Duration::from_secs(30))?;
//! // Only one process in the fleet is here. Hand guard.fencing_token() to whatever stores the result.
//! guard.check()?; // between the steps of a long job
//! guard.release()?; // or let the scope end
//! # Ok(())
//! # }
//! ```
//!
//! On servers that have never been used for locks, or were just started, this waits for up to ten seconds first: they
//! may have forgotten locks that are held, and have [no vote](Builder::quarantine) until those would have expired, which is
//! longer where a program needs [longer](Builder::max_ttl). The log says so. A wait that is shorter than that ends in an
//! error, so give it half a minute, or call [`lock`](Mutex::lock). For servers that are known to be new there is
//! [`vouch`](Admin::vouch).
//!
//! # What a lock means
//!
//! While [`Hold::is_valid`] is true, no other process holds the lock, **if** the servers keep what they stored, or
//! tell that they did not, clocks run at the same speed to within a margin, and no server's clock is stepped forward.
//!
//! # What it does not mean
//!
//! A process can be stopped for longer than its lock lasts, and not know until it runs again. Work that must never
//! happen twice needs a [fencing token](LockGuard::fencing_token) that is checked by whatever does it. Without such a
//! check, treat the lock as a way to save work.
//!
//! Also not prevented, or not always noticed:
//!
//! - a server's clock that is set forward, or runs faster than the [margin](Builder::clock_margin),
//! - a replica that takes over behind the address of its master, where it is not
//!   [given as well](guide::nodes#a-node-of-several-servers), and locks that are deleted or evicted one by one,
//! - programs that use different servers, prefixes or [longest ttls](Builder::max_ttl) for the same lock.
//!
//! A server that has lost all its data, or was restarted, is noticed: it has [no vote](Builder::quarantine) until what it
//! forgot has expired. The [safety page](guide::safety) says what to do about each, the page of
//! [obligations](guide::obligations) how it is tested, and [`LockManager::check_nodes`] what is wrong with your servers.
//!
//! Whether a lock of this kind is the right one for your job, and which others there are: [`guide::choosing`].
//!
//! A signal ends a process without releasing anything: [`guide::programs`] says what to do about that. From async code:
//! [`guide::async_code`]. In tests of your own: [`guide::testing`].
//!
//! # Threads
//!
//! A manager runs one thread per node and one for renewal, named `quorlock-n0`, … and `quorlock-renewal`, which are started by
//! [`Builder::build`]; a node of several servers has one more, which asks who the master is, and one that is a cluster has one
//! for each of its masters. All of them are joined when the last handle or guard goes. A callback of [`Hold::on_lost`] gets
//! a short-lived thread of its own.
//!
//! # Log levels
//!
//! Through the `log` crate:
//!
//! | level | what |
//! | --- | --- |
//! | error | a bug in this crate, or in a callback: a caught panic |
//! | warn  | what somebody has to look after: a lock was lost or not extended, no majority answers, a server that has no vote until its settings are changed |
//! | info  | a node went down or came back, stopped or began to respond, or has no vote for a while: once per change; that what was warned of is over |
//! | debug | how each round ended; further failures of a node that is down |
//! | trace | every reply |
//!
//! [`guide::nodes`] lists the lines worth an alert, and how often each comes; [`guide::operations`] what to do in ten incidents.
//!
//! Passwords never appear in logs, errors or `Debug` forms; owner tokens only shortened.

// docs.rs sets this: what needs a feature says so there.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    all(quorlock_shuttle, test),
    allow(dead_code, unused_imports, reason = "the checker stands in for parts of the crate")
)]
#![warn(clippy::arithmetic_side_effects, clippy::as_conversions, clippy::indexing_slicing)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr, clippy::dbg_macro)]

mod answer;
mod builder;
mod config;
mod engine;
pub mod error;
pub mod guide;
mod ids;
pub mod inspection;
mod kinds;
mod lock;
mod logic;
mod manager;
pub mod observer;
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
pub use error::{AcquireError, BuildError, ErrorKind, ExtendError, Lost, ReleaseError, Released, RunError};
pub use ids::{FencingToken, NodeId};
pub use kinds::{MultiLock, Mutex, Permit, ReentrantGuard, ReentrantMutex, RwLock, Semaphore};
pub use lock::{Hold, LockGuard, ReadGuard, WriteGuard, release_all};
pub use manager::{Admin, LockManager};
pub use stats::{NodeStats, Stats};
#[cfg(feature = "tls")]
pub use tls::Tls;
