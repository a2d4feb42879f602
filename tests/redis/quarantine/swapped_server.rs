//! A server gets the data of another one under connections that outlive it: replicated from there and promoted, or restored.

use devnodes::{Proxy, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure, NodeReport};
use quorlock::{LockGuard, LockManager};

use crate::quarantine::record::{quarantine, remember, strict};
use crate::support::*;
use crate::topology::replicated::{QUARANTINE, failure_in_the_end, vouched};

/// Nodes n0, n1 and n2; a lock that is held on n0 and n2 alone, and a client of all three that was connected before.
struct Scene {
    n0: Server,
    others: Servers,
    holder: LockGuard,
    other: LockManager,
    _way: Proxy,
}

/// Options without which a replica is not in step for seconds.
fn prompt(it: devnodes::Builder) -> devnodes::Builder {
    it.arg("--repl-diskless-sync-delay", "0")
}

impl Scene {
    fn start(n0: impl FnOnce(devnodes::Builder) -> devnodes::Builder) -> Scene {
        let n0 = n0(prompt(Server::builder())).start().unwrap();
        let url = n0.url();
        Scene::with(n0, url)
    }

    fn with(n0: Server, url: String) -> Scene {
        let others = Servers::start_with(2, prompt).unwrap();
        let urls: Vec<_> = [url].into_iter().chain(others.urls()).collect();
        let way = Proxy::start(others[0].addr()).unwrap();
        let options = |urls: &[String]| builder(urls).max_ttl(QUARANTINE).ttl(secs(300));
        let other = vouched(options(&urls));
        let holder = vouched(options(&[urls[0].clone(), way.url(), urls[2].clone()]));
        drop(lock_in_the_end(&other, "report"));
        eventually("it is given back", || {
            !n0.exists("report") && others.holders("report") == 0
        });
        way.refuse(true);
        way.cut();
        let holder = holder.mutex("report").renew(false).lock().unwrap();
        assert!(n0.exists("report") && !others[0].exists("report") && others[1].exists("report"));
        Scene {
            n0,
            others,
            holder,
            other,
            _way: way,
        }
    }

    /// n0 becomes a replica of n1 and has its data.
    fn replicate(&self) {
        self.n0
            .command(&["REPLICAOF", "127.0.0.1", &self.others[0].port().to_string()])
            .unwrap();
        eventually("n0 has the data of n1", || {
            self.n0.info("master_link_status").as_deref() == Some("up")
        });
        assert!(!self.n0.exists("report"));
    }

    fn promote(&self) {
        self.n0.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    }

    /// What the client that is connected still gets.
    fn two_hold(&self) -> bool {
        let theirs = self.other.mutex("report").try_lock();
        theirs.is_ok_and(|it| it.is_valid()) && self.holder.is_valid()
    }
}

#[test]
fn h17_a_server_swapped_under_an_active_client_is_quarantined() -> TestResult {
    needs!(Replicas);
    // A replica whose master cannot be reached says that, and refuses nothing else for being a replica.
    for (stale, replicates) in [("yes", true), ("no", false)] {
        let scene = Scene::start(|it| it.arg("--replica-serve-stale-data", stale));
        if replicates {
            scene.replicate();
        } else {
            scene.n0.command(&["REPLICAOF", "127.0.0.1", "1"])?;
        }
        let replica = |it: &NodeFailure| matches!(it, NodeFailure::Replica);
        eventually("it is asked meanwhile", || {
            let _ = scene.other.mutex("another").try_lock();
            scene.other.check_nodes()[0]
                .failure
                .as_ref()
                .is_some_and(replica)
        });
        scene.promote();
        if !replicates {
            del(&scene.n0, "report");
        }

        let left = failure_in_the_end(&scene.other, |it| {
            matches!(it, NodeFailure::Quarantined { .. })
        });
        let NodeFailure::Quarantined { left, .. } = left else {
            panic!("{left}")
        };
        assert!(secs(300) < left, "{left:?}");
        assert!(!scene.two_hold());
    }
    Ok(())
}

/// Nobody asks it meanwhile, so nobody is refused for its being a replica.
#[test]
fn h17_a_server_swapped_under_a_client_that_asks_nothing_has_no_vote() -> TestResult {
    needs!(Replicas);
    let scene = Scene::start(|it| it);
    scene.replicate();
    scene.promote();
    assert!(!scene.two_hold());
    Ok(())
}

#[test]
fn h17_a_writable_replica_has_no_vote_under_a_connection() -> TestResult {
    needs!(Replicas);
    let scene = Scene::start(|it| it.arg("--replica-read-only", "no"));
    scene.replicate();
    assert!(!scene.two_hold());
    Ok(())
}

#[test]
fn h17_a_server_flushed_and_filled_with_the_data_of_another_has_no_vote() -> TestResult {
    needs!(DataOnDisk);
    let scene = Scene::start(|it| it);
    scene.n0.command(&["FLUSHALL"])?;
    let keys = scene.others[0].command(&["KEYS", "*"])?;
    for key in keys.as_array().unwrap() {
        let key = key.as_bytes().unwrap();
        let dump = scene.others[0].command(&[b"DUMP", key])?;
        scene
            .n0
            .command(&[b"RESTORE", key, b"0", dump.as_bytes().unwrap()])?;
    }
    assert!(!scene.two_hold());
    Ok(())
}

#[test]
fn h17_a_group_swapped_between_two_looks_has_no_vote() -> TestResult {
    needs!(Replicas);
    let n0 = prompt(Server::builder()).start()?;
    let look = Proxy::start(n0.addr())?;
    let url = format!("redis+replicated://{}", look.addr());
    let scene = Scene::with(n0, url);
    // What is asked in between is answered afterwards.
    look.hold_requests();
    scene.replicate();
    scene.promote();
    look.release_requests();
    assert!(!scene.two_hold());
    Ok(())
}

/// Its round is over by then, and nobody extends the lock.
#[test]
fn h17_a_late_acquire_with_an_old_record_still_sets_its_key() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    locks.mutex("another").lock()?.release()?;
    eventually("all have been used", || {
        servers.iter().all(|it| record(it).is_some())
    });
    nothing_is_left(&servers);
    Record {
        record_version: "000000000000009".to_owned(),
        ..record(&servers[2]).unwrap()
    }
    .write(&servers[2]);
    servers[2].pause()?;

    let guard = locks.mutex("report").ttl(secs(600)).renew(false).lock()?;
    servers[2].resume()?;
    eventually("it stands there", || servers[2].exists("report"));

    guard.release()?;
    nothing_is_left(&servers);
    Ok(())
}

/// A client of three servers that were in use, with two databases each; and one that holds a lock in the first.
struct Databases {
    servers: Servers,
    holder: LockManager,
    other: LockManager,
}

impl Databases {
    fn start() -> Databases {
        let servers = Servers::start(3).unwrap();
        let in_second: Vec<_> = servers.iter().map(|it| it.url() + "/1").collect();
        let options = |urls: &[String]| builder(urls).max_ttl(QUARANTINE).ttl(secs(300));
        let connected = |urls: &[String]| {
            let locks = vouched(options(urls));
            connect(&locks, 3);
            drop(lock_in_the_end(&locks, "warm-up"));
            locks
        };
        drop(connected(&in_second));
        let [holder, other] = [0, 1].map(|_| connected(&servers.urls()));
        Databases {
            servers,
            holder,
            other,
        }
    }

    fn swap(&self) {
        command_all(&self.servers, &["SWAPDB", "0", "1"]);
    }

    /// No client that was connected counts any of the servers.
    #[track_caller]
    fn assert_quarantined(&self, locks: &LockManager) {
        let is_quarantined = |it: &NodeReport| matches!(&it.answer, NodeAnswer::Failed(NodeFailure::Quarantined { left, .. }) if secs(300) < *left);
        let err = locks.mutex("report").try_lock().unwrap_err();
        let quarantined = err.nodes().iter().filter(|it| is_quarantined(it)).count();
        assert!(2 <= quarantined, "{err}");
    }
}

#[test]
fn h17_a_swapped_database_grants_nothing_to_connected_clients() -> TestResult {
    let databases = Databases::start();
    let guard = databases.holder.mutex("report").renew(false).lock()?;
    databases.swap();

    databases.assert_quarantined(&databases.other);
    assert!(guard.extend(secs(300)).is_err(), "its keys are gone");

    // A swap back is a swap: here with the holder's keys, which it may lack as well.
    databases.swap();
    del_all(&databases.servers, "report");
    databases.assert_quarantined(&databases.other);
    Ok(())
}

#[test]
fn h17_a_held_lock_is_set_again_in_the_swapped_database_of_one_server() -> TestResult {
    let databases = Databases::start();
    let guard = databases.holder.mutex("report").renew(false).lock()?;
    let servers = &databases.servers;
    eventually("all have the key", || {
        guard.extend(secs(300)).is_ok() && servers.holders("report") == 3
    });
    servers[0].command(&["SWAPDB", "0", "1"])?;

    eventually("it is set again", || {
        guard.extend(secs(300)).is_ok() && servers.holders("report") == 3
    });
    assert!(databases.other.mutex("report").try_lock().is_err());
    guard.release()?;
    nothing_is_left(servers);
    Ok(())
}

/// A server that was in use for long, a client that has raised its `max_ttl`, and the record before that.
fn raised() -> (Servers, LockManager, Record) {
    let servers = Servers::start(1).unwrap();
    let server = &servers[0];
    remember(server, 600_000);
    let locks = strict([server.url()]).build().unwrap();
    drop(lock_in_the_end(&locks, "report"));
    let older = record(server).unwrap();
    let rows = locks.admin().set_max_ttl(secs(900));
    assert!(rows.iter().all(|it| it.failure.is_none()), "{rows:?}");
    drop(lock_in_the_end(&locks, "report"));
    (servers, locks, older)
}

#[test]
fn h17_a_record_that_did_not_grow_out_of_the_last_one_begins_a_quarantine() -> TestResult {
    type Change = fn(&mut Record);
    let changes: [(&str, Change); 3] = [
        ("an older copy", |_| {}),
        ("another change of an older copy", |it| {
            it.rest = format!(" {}", it.record_version);
            it.record_version = "000000000000009".to_owned();
        }),
        ("by hand", |it| {
            it.record_version = "000000000000009".to_owned()
        }),
    ];
    for (what, change) in changes {
        for reconnects in [false, true] {
            let (servers, locks, mut restored) = raised();
            change(&mut restored);
            servers[0].command(&["FLUSHALL"])?;
            restored.write(&servers[0]);
            if reconnects {
                servers[0].command(&["CLIENT", "KILL", "TYPE", "normal"])?;
                eventually("it has a new connection", || 2 <= locks.stats().connections);
            }
            assert!(secs(800) < quarantine(&locks), "{what}");
            assert!(secs(800) < quarantine(&locks), "{what}: a while later");
        }
    }
    Ok(())
}

#[test]
fn h17_a_record_that_others_changed_several_times_costs_no_vote() -> TestResult {
    let (servers, idle, _) = raised();
    let busy = strict([servers[0].url()]).build()?;
    for seconds in 901..910 {
        let _ = busy.admin().set_max_ttl(secs(seconds));
        drop(lock_in_the_end(&busy, "report"));
    }
    assert_eq!(record(&servers[0]).unwrap().max_ttl, 909_000);
    drop(idle.mutex("report").try_lock()?);
    Ok(())
}
