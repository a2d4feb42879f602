//! The last locks of a campaign on nodes that are several servers: they are held while every node hands over to other servers,
//! and released. The keys have come along, and nobody else deletes them.

use std::thread;
use std::time::Duration;

use devnodes::eventually;
use quorlock::LockManager;

use crate::nodes::Nodes;
use crate::options::TAG;
use crate::support::{boot, ms, nanos, sleep_until};

/// So long that no key goes by itself.
const TTL: Duration = Duration::from_secs(120);
/// For the releases that have to find their servers.
const PATIENCE: Duration = Duration::from_secs(20);

/// The keys that are left when all is released.
pub(crate) fn left_behind(nodes: &Nodes, quarantine: bool) -> Vec<String> {
    let builder = LockManager::builder(nodes.urls())
        .prefix(format!("{{{TAG}}}:"))
        .ttl(TTL)
        .max_ttl(TTL);
    let locks = builder.quarantine(quarantine).build().unwrap();
    if quarantine {
        // Servers promoted lately have no vote for the new ttl. Nobody else uses them any more: they may begin as new ones.
        nodes.empty();
        eventually("all nodes have a vote", || {
            locks
                .admin()
                .vouch()
                .iter()
                .all(|row| row.failure.is_none())
        });
    }
    let guards = (
        locks.mutex("last/mutex").lock().unwrap(),
        locks.multi_lock(["last/0", "last/1"]).lock().unwrap(),
        locks.rw_lock("last/writer").write().unwrap(),
        locks.semaphore("last/permits", 2).acquire().unwrap(),
    );
    thread::scope(|scope| {
        for node in &nodes.0 {
            scope.spawn(|| node.hand_over().unwrap());
        }
    });
    assert!(!nodes.lock_keys().is_empty(), "the keys have come along");
    drop(guards);
    let until = boot() + nanos(PATIENCE);
    while boot() < until && !nodes.lock_keys().is_empty() {
        sleep_until(until.min(boot() + nanos(ms(50))));
    }
    nodes.lock_keys()
}
