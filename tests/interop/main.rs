//! Other Redlock clients on the same nodes: they exclude us and we exclude them.
//!
//! | client | language | key of a lock |
//! | --- | --- | --- |
//! | redlock-py | Python | the name |
//! | pottery | Python | `redlock:` and the name |
//! | redlock 5 with ioredis | Node | the name |
//!
//! Each claim is tried with each of them, for each kind of our locks of that name.
//!
//! Each is a child process, `client.py` or `client.mjs`, that is told line by line what to do. Runs only with
//! `QUORLOCK_INTEROP=1`, because it needs python3 with pip and node with npm, and downloads the clients once: to below
//! cargo's target folder, at versions and hashes that `requirements.txt` and `package-lock.json` pin.

mod install;
mod peer;

use std::io::{self, Write};
use std::sync::Once;
use std::thread;
use std::time::Duration;

use devnodes::{PATIENCE, Servers, eventually};
use peer::{Client, Peer};
use quorlock::{AcquireError, Hold, LockManager, LostReason, ReleaseError};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const VARIABLE: &str = "QUORLOCK_INTEROP";

/// Outlives any test that is not about the end of a lock.
const TTL: Duration = Duration::from_secs(60);

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
    fn peer_takes_it(&mut self) {
        assert!(self.peer.acquire("report", TTL), "the lock is free");
        self.wait_until_everywhere();
    }

    fn wait_until_everywhere(&self) {
        eventually("the lock is on every node", || {
            self.servers.holders(&self.key) == self.servers.len()
        });
    }

    /// Theirs was there to be released, and nothing of ours is left.
    fn peer_releases_it(&mut self) -> TestResult {
        assert_eq!(self.peer.release(), "released");
        self.servers.wait_until_free(&self.key)?;
        Ok(())
    }

    /// The value of the lock on each node.
    fn values(&self) -> Vec<Option<Vec<u8>>> {
        self.servers.iter().map(|it| it.get(&self.key)).collect()
    }

    /// Somebody deletes the lock on so many servers.
    fn delete_lock(&self, servers: usize) -> TestResult {
        for server in self.servers.iter().take(servers) {
            server.command(&["DEL", &self.key])?;
        }
        Ok(())
    }
}

/// Our kinds of locks of that name.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Mutex,
    Reader,
    Writer,
    Set,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Mutex, Kind::Reader, Kind::Writer, Kind::Set];

    /// Without renewal, which would heal nodes that lost the lock.
    fn take(self, locks: &LockManager, wait: Duration) -> Result<Hold, AcquireError> {
        let (mutex, both) = (locks.mutex("report"), locks.rw_lock("report").renew(false));
        let set = locks.multi_lock(["another", "report"]).renew(false);
        Ok(match self {
            Kind::Mutex => mutex.renew(false).try_lock_for(wait)?.into(),
            Kind::Reader => both.try_read_for(wait)?.into(),
            Kind::Writer => both.try_write_for(wait)?.into(),
            Kind::Set => set.try_lock_for(wait)?.into(),
        })
    }

    fn try_take(self, locks: &LockManager) -> Result<Hold, AcquireError> {
        self.take(locks, Duration::ZERO)
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
    a_lock_of_the_other_client_on_a_bare_majority_refuses_all_our_kinds,
    each_of_our_kinds_on_a_bare_majority_refuses_the_other_client_until_its_release,
    a_release_of_the_other_client_reaches_our_waiting_kinds,
    the_other_client_leaves_our_lock_after_its_loss,
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

fn a_lock_of_the_other_client_on_a_bare_majority_refuses_all_our_kinds(
    mut world: World,
) -> TestResult {
    world.peer_takes_it();
    world.delete_lock(world.servers.len() / 2)?;
    let (values, another) = (world.values(), world.key.replace("report", "another"));

    for kind in Kind::ALL {
        let err = kind.try_take(&world.locks).err().ok_or("held by them")?;
        assert!(err.is_held(), "{kind:?}: {err}");
        // A node that was not waited for gives back a moment later.
        eventually("our grants are given back", || {
            world.values() == values && world.servers.holders(&another) == 0
        });
    }
    world.peer_releases_it()
}

fn each_of_our_kinds_on_a_bare_majority_refuses_the_other_client_until_its_release(
    mut world: World,
) -> TestResult {
    for kind in Kind::ALL {
        let ours = kind.try_take(&world.locks)?;
        world.wait_until_everywhere();
        world.delete_lock(world.servers.len() / 2)?;

        assert!(!world.peer.acquire("report", TTL), "held by us: {kind:?}");

        ours.check()?;
        ours.release()?;
        world.peer_takes_it();
        world.peer_releases_it()?;
    }
    Ok(())
}

fn a_release_of_the_other_client_reaches_our_waiting_kinds(mut world: World) -> TestResult {
    for kind in Kind::ALL {
        world.peer_takes_it();
        let before = world.locks.stats().rounds_held;
        let locks = world.locks.clone();
        let waiter = thread::Builder::new().spawn(move || kind.take(&locks, PATIENCE))?;
        eventually("we were refused", || {
            before < world.locks.stats().rounds_held
        });
        assert_eq!(world.peer.release(), "released", "{kind:?}");

        waiter.join().unwrap()?.release()?;
        world.servers.wait_until_free(&world.key)?;
    }
    Ok(())
}

fn the_other_client_leaves_our_lock_after_its_loss(mut world: World) -> TestResult {
    world.peer_takes_it();
    world.delete_lock(world.servers.len())?;
    let guard = world.locks.mutex("report").try_lock()?;
    world.wait_until_everywhere();
    let values = world.values();

    world.peer.release(); // an error for some clients and none for others

    assert_eq!(world.values(), values);
    guard.extend(TTL)?;
    guard.release()?;
    Ok(())
}

fn our_lost_kinds_leave_the_lock_of_the_other_client(mut world: World) -> TestResult {
    for kind in Kind::ALL {
        let ours = kind.try_take(&world.locks)?;
        world.wait_until_everywhere();
        world.delete_lock(world.servers.len())?;
        world.peer_takes_it();
        let values = world.values();

        // We have not noticed: this release is really sent, and finds it.
        let released = ours.release();
        let is_gone =
            matches!(&released, Err(ReleaseError::Lost(lost)) if lost.reason == LostReason::Gone);
        assert!(is_gone, "{kind:?}: {released:?}");

        // On the nodes that refuse this the release has been executed before.
        let tried = kind.try_take(&world.locks);
        assert!(tried.is_err_and(|it| it.is_held()), "{kind:?}");
        assert_eq!(world.values(), values, "{kind:?}");
        world.peer_releases_it()?;
    }
    Ok(())
}
