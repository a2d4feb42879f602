//! Other Redlock clients on the same nodes: they exclude us and we exclude them.
//!
//! | client | language | key of a lock |
//! | --- | --- | --- |
//! | redlock-py | Python | the name |
//! | pottery | Python | `redlock:` and the name |
//! | redlock 5 with ioredis | Node | the name |
//!
//! Each claim is tried with each of them: about mutexes here; about readers, writers and sets of names in [`forms`].
//!
//! Each is a child process, `client.py` or `client.mjs`, that is told line by line what to do. Runs only with
//! `QUORLOCK_INTEROP=1`, because it needs python3 with pip and node with npm, and downloads the clients once: to below
//! cargo's target folder, at versions and hashes that `requirements.txt` and `package-lock.json` pin.

mod forms;
mod install;
mod peer;

use std::io::{self, Write};
use std::sync::Once;
use std::time::Duration;

use devnodes::{PATIENCE, Servers, eventually};
use forms::{
    a_lock_of_the_other_client_refuses_all_our_kinds,
    a_release_of_the_other_client_reaches_our_waiting_kinds,
    each_of_our_kinds_refuses_the_other_client_until_its_release,
    our_lost_kinds_leave_the_lock_of_the_other_client,
    our_readers_refuse_the_other_client_until_the_last_release,
};
use peer::{Client, Peer};
use quorlock::LockManager;

type TestResult = Result<(), Box<dyn std::error::Error>>;

const VARIABLE: &str = "QUORLOCK_INTEROP";

/// Outlives any test that is not about the end of a lock.
const TTL: Duration = Duration::from_secs(60);

/// The shortest that the default response timeout allows.
const SHORT: Duration = Duration::from_millis(400);

/// One client and us, on the same nodes.
struct World {
    servers: Servers,
    locks: LockManager,
    peer: Peer,
    /// What the lock "report" is called on the nodes.
    key: String,
}

impl World {
    fn new(client: Client, nodes: usize) -> Result<World, Box<dyn std::error::Error>> {
        let servers = Servers::start(nodes)?;
        let locks = LockManager::builder(servers.urls()).prefix(client.prefix());
        // The servers are new, and the other client does not care.
        let locks = locks.ttl(TTL).quarantine(false).build()?;
        let peer = Peer::start(client, &servers.urls())?;
        Ok(World {
            servers,
            locks,
            peer,
            key: format!("{}report", client.prefix()),
        })
    }

    /// The peer takes the lock, on every node: it may say so when a majority has answered.
    fn peer_takes_it(&mut self) -> TestResult {
        assert!(self.peer.acquire("report", TTL)?, "the lock is free");
        self.wait_until_everywhere();
        Ok(())
    }

    fn wait_until_everywhere(&self) {
        eventually("the lock is on every node", || {
            self.servers.holders(&self.key) == self.servers.len()
        });
    }

    /// The value of the lock on each node.
    fn values(&self) -> Vec<Option<Vec<u8>>> {
        self.servers.iter().map(|it| it.get(&self.key)).collect()
    }

    fn key_counts(&self) -> Vec<usize> {
        let without_record = |it: &devnodes::Server| {
            let record = it.exists("quorlock:record").into();
            it.key_count().saturating_sub(record)
        };
        self.servers.iter().map(without_record).collect()
    }

    /// Somebody deletes the lock on so many servers.
    fn delete_lock(&self, servers: usize) -> TestResult {
        for server in self.servers.iter().take(servers) {
            server.command(&["DEL", &self.key])?;
        }
        Ok(())
    }
}

/// Each claim, for each client, on three nodes or five.
macro_rules! claims {
    ($($claim:ident),* $(,)?) => {
        mod redlock_py { $(#[test] fn $claim() -> super::TestResult { super::run(super::Client::RedlockPy, 3, super::$claim) })* }
        mod pottery { $(#[test] fn $claim() -> super::TestResult { super::run(super::Client::Pottery, 5, super::$claim) })* }
        mod node_redlock { $(#[test] fn $claim() -> super::TestResult { super::run(super::Client::NodeRedlock, 5, super::$claim) })* }
    };
}

claims! {
    a_lock_of_the_other_client_on_a_bare_majority_refuses_ours,
    our_lock_on_a_bare_majority_refuses_the_other_client,
    the_other_client_leaves_our_lock_after_its_loss,
    our_expired_guard_leaves_the_lock_of_the_other_client,
    the_other_client_leaves_our_lock_after_its_expiry,
    a_lock_of_the_other_client_refuses_all_our_kinds,
    each_of_our_kinds_refuses_the_other_client_until_its_release,
    our_readers_refuse_the_other_client_until_the_last_release,
    a_release_of_the_other_client_reaches_our_waiting_kinds,
    our_lost_kinds_leave_the_lock_of_the_other_client,
}

fn run(client: Client, nodes: usize, claim: fn(World) -> TestResult) -> TestResult {
    static SAY: Once = Once::new();
    if std::env::var_os(VARIABLE).is_none_or(|it| it != "1") {
        // Not eprintln: the test runner would keep it for itself.
        SAY.call_once(|| {
            let _ = writeln!(
                io::stderr(),
                "interop: NOT RUN, no other client was tried: {VARIABLE} is not 1; it needs python3 with pip and \
                 node with npm, and downloads the clients"
            );
        });
        return Ok(());
    }
    claim(World::new(client, nodes)?)
}

fn a_lock_of_the_other_client_on_a_bare_majority_refuses_ours(mut world: World) -> TestResult {
    world.peer_takes_it()?;
    world.delete_lock(world.servers.len() / 2)?;
    let values = world.values();

    let err = world.locks.mutex("report").try_lock().unwrap_err();

    assert!(err.is_held(), "{err}");
    // A node that was not waited for gives back a moment later.
    eventually("our grants are given back", || world.values() == values);
    Ok(())
}

fn our_lock_on_a_bare_majority_refuses_the_other_client(mut world: World) -> TestResult {
    // Without renewal, which would heal the nodes that lost it.
    let guard = world.locks.mutex("report").renew(false).try_lock()?;
    world.wait_until_everywhere();
    world.delete_lock(world.servers.len() / 2)?;

    assert!(!world.peer.acquire("report", TTL)?, "held by us");

    guard.check()?;
    guard.release()?;
    Ok(())
}

fn the_other_client_leaves_our_lock_after_its_loss(mut world: World) -> TestResult {
    world.peer_takes_it()?;
    world.delete_lock(world.servers.len())?;
    let guard = world.locks.mutex("report").try_lock()?;
    world.wait_until_everywhere();
    let values = world.values();

    world.peer.release()?; // an error for some clients and none for others

    assert_eq!(world.values(), values);
    guard.extend(TTL)?;
    guard.release()?;
    Ok(())
}

fn our_expired_guard_leaves_the_lock_of_the_other_client(mut world: World) -> TestResult {
    let lock = world.locks.mutex("report").ttl(SHORT).renew(false);
    let guard = lock.try_lock()?;
    world.servers.wait_until_free(&world.key)?;
    let is_valid = guard.is_valid();
    assert!(!is_valid, "the nodes forget it after the holder does");
    world.peer_takes_it()?;
    let values = world.values();

    drop(guard);

    world.locks.shutdown();
    assert_eq!(world.values(), values);
    Ok(())
}

fn the_other_client_leaves_our_lock_after_its_expiry(mut world: World) -> TestResult {
    assert!(world.peer.acquire("report", SHORT)?, "the lock is free");
    let guard = world.locks.mutex("report").try_lock_for(PATIENCE)?;
    // We have a majority; on the other nodes theirs may last a moment longer, and an extension brings ours.
    eventually("our key is on every node", || {
        let values = world.values();
        guard.extend(TTL).is_ok() && values.iter().all(|it| it.is_some() && *it == values[0])
    });
    let values = world.values();

    world.peer.release()?; // an error for some clients and none for others

    assert_eq!(world.values(), values);
    guard.extend(TTL)?;
    guard.release()?;
    Ok(())
}
