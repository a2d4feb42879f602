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
    what_any_form_of_ours_holds_they_are_refused_until_it_is_released,
    what_any_form_of_ours_loses_they_get_and_our_release_leaves_alone,
    what_several_readers_hold_they_are_refused_until_the_last_is_gone,
    what_they_hold_no_form_of_ours_gets_or_changes,
    what_they_release_any_form_of_ours_gets_while_waiting,
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
    what_they_hold_on_a_bare_majority_we_are_refused_and_give_back,
    what_we_hold_on_a_bare_majority_they_are_refused,
    what_they_lose_we_get_and_their_release_leaves_alone,
    what_expired_for_us_they_get_and_our_guard_leaves_alone,
    what_expired_for_them_we_get_and_their_release_leaves_alone,
    what_they_hold_no_form_of_ours_gets_or_changes,
    what_any_form_of_ours_holds_they_are_refused_until_it_is_released,
    what_several_readers_hold_they_are_refused_until_the_last_is_gone,
    what_they_release_any_form_of_ours_gets_while_waiting,
    what_any_form_of_ours_loses_they_get_and_our_release_leaves_alone,
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

fn what_they_hold_on_a_bare_majority_we_are_refused_and_give_back(mut world: World) -> TestResult {
    world.peer_takes_it()?;
    world.delete_lock(world.servers.len() / 2)?;
    let values = world.values();

    let err = world.locks.mutex("report").try_lock().unwrap_err();

    assert!(err.is_held(), "{err}");
    // A node that was not waited for gives back a moment later.
    eventually("our grants are given back", || world.values() == values);
    Ok(())
}

fn what_we_hold_on_a_bare_majority_they_are_refused(mut world: World) -> TestResult {
    // Without renewal, which would heal the nodes that lost it.
    let guard = world.locks.mutex("report").renew(false).try_lock()?;
    world.wait_until_everywhere();
    world.delete_lock(world.servers.len() / 2)?;

    assert!(!world.peer.acquire("report", TTL)?, "held by us");

    guard.check()?;
    guard.release()?;
    Ok(())
}

fn what_they_lose_we_get_and_their_release_leaves_alone(mut world: World) -> TestResult {
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

fn what_expired_for_us_they_get_and_our_guard_leaves_alone(mut world: World) -> TestResult {
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

fn what_expired_for_them_we_get_and_their_release_leaves_alone(mut world: World) -> TestResult {
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
