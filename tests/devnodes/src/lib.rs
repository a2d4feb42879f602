//! Real Redis servers on loopback, and ways to break them.
//!
//! For the tests, examples and benches of `quorlock`; never published. Unix only.
//!
//! ```no_run
//! let servers = devnodes::Servers::start(3)?;
//! servers[0].pause()?; // SIGSTOP: connections stay open, nothing is answered
//! servers[1].restart()?; // same port, and empty: persistence is always off
//! # Ok::<(), devnodes::Error>(())
//! ```
//!
//! | to get | use |
//! | --- | --- |
//! | what servers are in this run, and how they are reached | [`backend`] |
//! | a real server, paused, killed, restarted | [`Server`], several: [`Servers`] |
//! | a master with replicas and sentinels | [`Group`] |
//! | a cluster of masters and replicas | [`Cluster`] |
//! | a wall clock that is stepped while its process runs | [`Builder::stepped_clock`], [`Clock`] |
//! | names that are not resolved, in a process | [`SlowNames`] |
//! | a slow, cut or mute network in front of one | [`Proxy`] |
//! | a server that answers nonsense | [`fake::FakeServer`] |
//! | TLS in front of one, and certificates | [`tls`] |
//! | another process of the same test program, to stop and to kill | [`ChildProcess`] |
//! | a command sent from the test's side | [`Server::command`], [`client::Client`] |
//! | the version of the server, found or fetched | [`find::server_version`] |
//!
//! Servers die with the process that started them, even if that is killed with SIGKILL. What waits here waits up to
//! [`PATIENCE`] and then says what it waited for.

mod backend;
mod child;
pub mod client;
mod clock;
mod cluster;
mod error;
pub mod fake;
mod fetch;
pub mod find;
mod group;
mod launch;
mod names;
mod port;
mod proxy;
mod server;
mod servers;
pub mod spoil;
pub mod stand_in;
pub mod tls;
mod wait;
mod watchdog;
mod words;

pub use backend::{Backend, Need, backend, lacks};
pub use child::{ChildProcess, is_child, say};
pub use client::{Client, Reply};
pub use clock::Clock;
pub use cluster::{Cluster, ClusterBuilder, Migration};
pub use error::Error;
pub use fake::{FakeConn, FakeServer};
pub use group::{Group, GroupBuilder};
pub use names::SlowNames;
pub use proxy::Proxy;
pub use server::{Builder, Server};
pub use servers::Servers;
pub use spoil::{Spoiled, spoil};
pub use wait::{PATIENCE, eventually, eventually_some};
pub use words::debug_form;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Also where a thread has panicked with it: tests show the first panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
