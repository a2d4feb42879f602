//! What the single servers of a test are, and how they are reached: `QUORLOCK_TEST_BACKEND` chooses.

use std::env;
use std::fmt::{self, Display};
use std::sync::OnceLock;

use crate::Clock;

const VARIABLE: &str = "QUORLOCK_TEST_BACKEND";

/// What a [`Server`](crate::Server) is. Groups and clusters are Redis processes without TLS on every backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// `servers`, the default: a Redis process.
    Servers,
    /// `tls`: the same behind a [`Terminator`](crate::tls::Terminator). URLs of servers and of proxies begin with `rediss://`.
    Tls,
    /// `stand-ins`: a process that is a stand-in of `quorlock-testing`. A server with options is a Redis process here too.
    StandIns,
}

/// What a test needs that not every backend has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Users with rights of their own.
    AccessLists,
    /// A refused connection at the address of a killed server.
    ClosedPorts,
    /// Redis Cluster.
    Clusters,
    /// `MONITOR`.
    CommandMonitor,
    /// `CLIENT LIST`.
    ConnectionNames,
    /// Keys that outlive a restart.
    DataOnDisk,
    /// More databases than number 0.
    Databases,
    /// A server without `HELLO`.
    OldProtocol,
    /// Counts of errors and of subcommands.
    ErrorCounts,
    /// A login.
    Passwords,
    /// URLs for clients without TLS.
    PlainUrls,
    /// A primary and its replicas.
    Replicas,
    /// Commands for data that fencing tokens guard.
    Storage,
    /// Sentinels.
    Sentinels,
    /// `CONFIG SET`, and options at the start.
    Settings,
    /// Wall clocks that tests set: on Linux only.
    SteppedClocks,
    /// A socket in the file system.
    UnixSockets,
}

impl Backend {
    const ALL: [Backend; 3] = [Backend::Servers, Backend::Tls, Backend::StandIns];

    /// Whether tests with this need cannot run here, or show nothing new.
    pub fn lacks(self, need: Need) -> bool {
        use Need::*;
        let lacking: &[Need] = match self {
            Backend::Servers => &[],
            // `tests/tls` has groups and clusters with TLS of their own.
            Backend::Tls => &[ClosedPorts, Clusters, PlainUrls, Replicas, Sentinels],
            Backend::StandIns => &[
                AccessLists,
                Clusters,
                CommandMonitor,
                ConnectionNames,
                DataOnDisk,
                Databases,
                ErrorCounts,
                OldProtocol,
                Passwords,
                Replicas,
                Sentinels,
                Settings,
                Storage,
                UnixSockets,
            ],
        };
        lacking.contains(&need)
    }
}

impl Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Servers => "servers",
            Backend::Tls => "tls",
            Backend::StandIns => "stand-ins",
        })
    }
}

/// The chosen backend.
///
/// # Panics
///
/// `QUORLOCK_TEST_BACKEND` is set to no backend.
pub fn backend() -> Backend {
    static CHOSEN: OnceLock<Backend> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let value = env::var_os(VARIABLE).unwrap_or_default();
        let value = value.to_string_lossy();
        let found = Backend::ALL
            .into_iter()
            .find(|backend| backend.to_string() == value);
        found
            .or(value.is_empty().then_some(Backend::Servers))
            .unwrap_or_else(|| {
                let names = Backend::ALL.map(|backend| backend.to_string()).join(", ");
                panic!("{VARIABLE}={value} is no backend. The backends: {names}.")
            })
    })
}

/// Whether the chosen backend lacks this; a line on standard error reports the skipped test.
pub fn lacks(need: Need) -> bool {
    let lacks = backend().lacks(need) || need == Need::SteppedClocks && !Clock::available();
    if lacks {
        eprintln!("skipped: {need:?} is not on the backend {}", backend());
    }
    lacks
}
