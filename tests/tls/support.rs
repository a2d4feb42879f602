//! What these tests have in common.

use std::time::Duration;

use devnodes::tls::{Authority, Certificate, Terminator};
use devnodes::{PATIENCE, Server, Servers, eventually, eventually_some};
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

    /// Clients must show a certificate of the same authority from the next connection on.
    pub(crate) fn ask_for_certificates(&self) {
        let shown = right(&self.authority);
        for front in &self.fronts {
            front.set_certificate(&shown, Some(&self.authority));
        }
    }

    /// Ends all connections; returns when each server has had this many handshakes.
    #[track_caller]
    pub(crate) fn reconnect(&self, locks: &LockManager, handshakes: usize) {
        self.fronts.iter().for_each(Terminator::cut);
        eventually("all nodes are connected again", || {
            let _ = locks.mutex("report").try_lock();
            self.fronts.iter().all(|it| handshakes <= it.handshakes())
        });
    }

    /// Waits until all servers have granted the lock "report".
    #[track_caller]
    pub(crate) fn wait_for_grants(&self) {
        let all = self.servers.len();
        eventually("all have granted it", || {
            self.servers.holders("report") == all
        });
    }

    /// How many handshakes each server has had.
    pub(crate) fn handshakes(&self) -> Vec<usize> {
        self.fronts.iter().map(Terminator::handshakes).collect()
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
    eventually_some("the lock can be taken", || {
        locks.mutex(name).try_lock().ok()
    })
}

/// Why the node cannot vote, once it is known to be in its TLS.
#[track_caller]
pub(crate) fn tls_failure(locks: &LockManager, node: usize) -> TlsFailure {
    eventually_some("the node fails for its TLS", || {
        match locks.check_nodes().swap_remove(node).failure {
            Some(NodeFailure::Tls(failure)) => Some(failure),
            _ => None,
        }
    })
}

/// Why the first node cannot vote, once that is so.
#[track_caller]
pub(crate) fn node_failure(locks: &LockManager) -> NodeFailure {
    eventually_some("the node fails", || {
        locks.check_nodes().swap_remove(0).failure
    })
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
