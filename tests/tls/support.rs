//! What these tests have in common.

use std::time::Duration;

use devnodes::tls::{Authority, Certificate, Terminator};
use devnodes::{PATIENCE, Server, Servers, eventually};
use quorlock::Node;
use quorlock::error::{NodeFailure, TlsFailure};
use quorlock::{Builder, LockGuard, LockManager, Tls};

pub(crate) type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Longer than any test waits: a key with this ttl that is gone was deleted, and did not expire.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Servers, and what speaks TLS in front of each.
pub(crate) struct Secured {
    pub(crate) authority: Authority,
    pub(crate) fronts: Vec<Terminator>,
    pub(crate) servers: Servers,
}

impl Secured {
    /// All certificates are right, and nobody is asked for one.
    pub(crate) fn start(n: usize) -> Secured {
        let servers = Servers::start(n).unwrap();
        let authority = Authority::generate();
        let front = |it: &Server| Terminator::start(it.addr(), &right(&authority), None).unwrap();
        let fronts = servers.iter().map(front).collect();
        Secured {
            authority,
            fronts,
            servers,
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.fronts.iter().map(Terminator::url).collect()
    }

    /// Trusts who has signed their certificates.
    pub(crate) fn tls(&self) -> Tls {
        Tls::with_ca_pem(self.authority.pem())
    }

    pub(crate) fn builder(&self) -> Builder {
        patient(self.urls()).tls(self.tls())
    }
}

/// A certificate that is right for all nodes of these tests.
pub(crate) fn right(authority: &Authority) -> Certificate {
    authority.certify(&["127.0.0.1"])
}

/// Options under which a busy machine fails no test. The servers of tests are always new.
pub(crate) fn patient<N: Into<Node>>(nodes: impl IntoIterator<Item = N>) -> Builder {
    LockManager::builder(nodes)
        .ttl(LONG)
        .response_timeout(Duration::from_secs(5))
        .connect_timeout(Duration::from_secs(10))
        .outage_timeout(PATIENCE)
        .shutdown_grace(Duration::from_secs(5))
        .quarantine(false)
}

/// Takes the lock, and again until it works: for nodes that come back.
#[track_caller]
pub(crate) fn lock_in_the_end(locks: &LockManager, name: &str) -> LockGuard {
    let mut guard = None;
    eventually("the lock can be taken", || {
        guard = locks.mutex(name).try_lock().ok();
        guard.is_some()
    });
    guard.unwrap()
}

/// Why the node cannot vote, once it is known to be in its TLS.
#[track_caller]
pub(crate) fn tls_failure(locks: &LockManager, node: usize) -> TlsFailure {
    let mut found = None;
    eventually("the node fails for its TLS", || {
        found = match &locks.check_nodes()[node].failure {
            Some(NodeFailure::Tls(failure)) => Some(failure.clone()),
            _ => None,
        };
        found.is_some()
    });
    found.unwrap()
}

/// Why the first node cannot vote, once that is so.
#[track_caller]
pub(crate) fn node_failure(locks: &LockManager) -> NodeFailure {
    let mut found = None;
    eventually("the node fails", || {
        found = locks.check_nodes().swap_remove(0).failure;
        found.is_some()
    });
    found.unwrap()
}

/// Waits until the node votes.
#[track_caller]
pub(crate) fn comes_up(locks: &LockManager, node: usize) {
    eventually("the node votes", || {
        locks.check_nodes()[node].failure.is_none()
    });
}

/// Waits until no server holds a lock.
#[track_caller]
pub(crate) fn nothing_is_left(servers: &Servers, name: &str) {
    servers.wait_until_free(name).unwrap();
}
