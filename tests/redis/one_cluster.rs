//! Locks in one cluster: who is let in, what is said of it, and what becomes of locks while their slots move.
//!
//! These tests share a cluster, and each has names of its own: starting one takes two seconds. They may move slots, and leave
//! one without owner. Those that break more, or need quarantine, are in `clusters`.

use std::sync::LazyLock;
use std::thread;

use devnodes::{Cluster, FakeServer, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure, NodeFinding};
use quorlock::inspection::{LockState, StoredKey};
use quorlock::{AcquireError, Builder, LockGuard, LockManager};

use crate::lists::{listeners_of, waiters_of};
use crate::support::*;

/// Three masters without replicas.
fn shared() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> =
        LazyLock::new(|| Cluster::builder(3).partial().start().unwrap());
    &CLUSTER
}

fn one(cluster: &Cluster) -> LockManager {
    builder([cluster.url()]).build().unwrap()
}

/// Why the cluster's node failed, in the end, in a call for this name.
#[track_caller]
fn failure_of(
    locks: &LockManager,
    name: &str,
    looks: impl Fn(&NodeFailure) -> bool,
) -> NodeFailure {
    let is_it = |err: &AcquireError| match err.nodes().first().map(|it| &it.answer) {
        Some(NodeAnswer::Failed(failure)) => looks(failure),
        _ => false,
    };
    failure(&error_in_the_end(locks, name, is_it), 0).clone()
}

/// Whether the server has the lock's key. One that is not there any more has none.
fn has(cluster: &Cluster, server: usize, name: &str) -> bool {
    cluster.servers[server]
        .command(&["KEYS", name])
        .is_ok_and(|it| it.as_array().is_some_and(|it| !it.is_empty()))
}

#[track_caller]
fn nothing_is_left_of(cluster: &Cluster, name: &str) {
    eventually("its key is on no server", || {
        (0..cluster.servers.len()).all(|it| !has(cluster, it, name))
    });
}

#[test]
fn one_seed_that_answers_is_enough_whatever_the_others_are() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let (stranger, garbage, down) = (Server::start()?, FakeServer::garbage()?, Server::start()?);
    down.kill()?;
    let others = [stranger.addr(), garbage.addr(), down.addr()]
        .map(|it| it.to_string())
        .join(",");
    let url = format!("redis+cluster://{others},{}", cluster.servers[2].addr());
    let locks = builder([url]).connect_timeout(ms(600)).build()?;
    for server in 0..3 {
        let name = cluster.name_at(server, "seeds");
        drop(lock_in_the_end(&locks, &name));
        nothing_is_left_of(cluster, &name);
    }
    Ok(())
}

#[test]
fn calls_of_other_managers_are_let_in_by_notices_in_their_order() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    // It asks again after nearly a minute at the earliest.
    let far = || {
        builder([cluster.url()])
            .ttl(LONG)
            .retry_delay(secs(50), secs(60))
            .build()
            .unwrap()
    };
    for server in 0..3 {
        let name = cluster.name_at(server, "notices");
        let at = &cluster.servers[server];
        let held = lock_in_the_end(&far(), &name);
        let mut waiting = Vec::new();
        for count in 1..=2 {
            let (locks, name) = (far(), name.clone());
            let mutex = locks.mutex(&name);
            waiting.push((locks, thread::spawn(move || mutex.lock())));
            eventually("it is on the list", || waiters_of(at, &name).len() == count);
        }
        eventually("both listen there", || {
            let (waiters, listeners) = (waiters_of(at, &name), listeners_of(at));
            waiters.iter().all(|it| listeners.contains(it))
        });

        let mut last: Option<LockGuard> = Some(held);
        for (locks, thread) in waiting {
            let before = last.take().unwrap();
            let token = before.fencing_token();
            before.release()?;
            let guard = join(thread)?;
            assert!(token < guard.fencing_token());
            assert!(1 <= locks.stats().notices);
            last = Some(guard);
        }
        drop(last);
        nothing_is_left_of(cluster, &name);
    }
    Ok(())
}

#[test]
fn readers_writers_and_permits_live_in_a_cluster() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let (first, second) = (one(cluster), one(cluster));
    for server in 0..3 {
        let name = cluster.name_at(server, "catalog");
        drop(lock_in_the_end(&first, &name));
        let readers = (
            first.rw_lock(&name).try_read()?,
            second.rw_lock(&name).try_read()?,
        );
        assert_held(&second.rw_lock(&name).try_write().unwrap_err());
        drop(readers);
        let writer = second.rw_lock(&name).write()?;
        assert_held(&first.rw_lock(&name).try_read().unwrap_err());
        let reader = writer.downgrade()?;
        drop(first.rw_lock(&name).try_read()?);
        reader.release()?;

        let name = cluster.name_at(server, "mail");
        let permits = (
            first.semaphore(&name, 2).acquire()?,
            second.semaphore(&name, 2).acquire()?,
        );
        assert_ne!(permits.0.slot(), permits.1.slot());
        assert_held(&first.semaphore(&name, 2).try_acquire().unwrap_err());
        permits.0.release()?;
        drop(first.semaphore(&name, 2).acquire()?);
        permits.1.release()?;
        eventually("no slot is taken", || {
            second
                .semaphore(&name, 2)
                .inspect()
                .unwrap()
                .iter()
                .all(|it| it.state() == LockState::Free)
        });
    }
    Ok(())
}

/// Options under which calls ask again soon: what a moving slot refuses is asked again.
fn near(cluster: &Cluster) -> Builder {
    builder([cluster.url()]).ttl(LONG)
}

#[test]
fn a_lock_that_is_held_and_wanted_moves_with_its_slot_and_is_handed_over_there() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let (first, second) = (near(cluster).build()?, near(cluster).build()?);
    let name = cluster.name_at(0, "moving");
    let guard = lock_in_the_end(&first, &name);
    let mutex = second.mutex(&name);
    let waiter = thread::spawn(move || mutex.lock());
    eventually("it is on the list", || {
        waiters_of(&cluster.servers[0], &name).len() == 1
    });

    cluster.migrate(cluster.slot_of(&name), 1)?;

    assert!(has(cluster, 1, &name));
    eventually("it is extended at the new owner", || {
        guard.extend(LONG).is_ok()
    });
    let token = guard.fencing_token();
    drop(guard);
    let theirs = join(waiter)?;
    assert!(token < theirs.fencing_token());
    theirs.release()?;
    nothing_is_left_of(cluster, &name);
    Ok(())
}

#[test]
fn while_keys_of_a_lock_are_on_both_sides_it_is_neither_taken_nor_lost_and_released_in_the_end()
-> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let (first, second) = (near(cluster).build()?, near(cluster).build()?);
    let name = cluster.name_at(1, "between");
    let guard = lock_in_the_end(&first, &name);

    let migration = cluster.begin_migration(cluster.slot_of(&name), 2)?;
    migration.move_key(&name)?;
    let failure = failure_of(&second, &name, |it| {
        matches!(it, NodeFailure::SlotMoved { .. })
    });
    assert!(failure.to_string().contains("moving"), "{failure}");
    assert!(guard.is_valid() && has(cluster, 2, &name));
    // Its release is refused now, and brought when the slot is somewhere.
    drop(guard);
    migration.finish()?;

    drop(lock_in_the_end(&second, &name));
    nothing_is_left_of(cluster, &name);
    Ok(())
}

#[test]
fn a_slot_that_is_taken_without_its_keys_loses_its_locks_and_their_holders_hear_of_it() -> TestResult
{
    needs!(Clusters);
    let cluster = shared();
    let locks = near(cluster).build()?;
    let name = cluster.name_at(2, "taken");
    let guard = lock_in_the_end(&locks, &name);

    cluster.take_slot(cluster.slot_of(&name), 0)?;

    // It is the only node.
    eventually("its holder hears of it", || {
        guard.extend(LONG).is_err() && !guard.is_valid()
    });
    drop(lock_in_the_end(&locks, &name));
    nothing_is_left_of(cluster, &name);
    Ok(())
}

#[test]
fn a_lock_is_on_the_master_of_its_slot_and_nowhere_else() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let locks = one(cluster);
    for (index, name) in cluster.names::<3>("there").iter().enumerate() {
        let guard = locks.mutex(name).try_lock()?;
        assert!(cluster.servers[index].exists(name));
        assert!(locks.mutex(name).try_lock().is_err());
        guard.extend(secs(20))?;
        guard.release()?;
        assert!(!cluster.servers[index].exists(name));
    }
    Ok(())
}

#[test]
fn every_kind_of_lock_has_all_its_keys_in_one_slot_whatever_it_is_called() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let locks = one(cluster);
    for name in [
        "a", "", "{", "}", "{}", "a}b", "{a}", "{a", "a{b}c", "{}{x}", "x{y}{z}", "a{b{c}d}",
    ] {
        drop(locks.mutex(name).try_lock()?);
        eventually("a reader", || locks.rw_lock(name).try_read().is_ok());
        eventually("a writer", || locks.rw_lock(name).try_write().is_ok());
        let permits = format!("{name}permits");
        let semaphore = locks.semaphore(&permits, 3);
        let both = [semaphore.try_acquire()?, semaphore.try_acquire()?];
        drop(both);
    }
    Ok(())
}

#[test]
fn a_cluster_is_one_node_among_others() -> TestResult {
    needs!(Clusters);
    let (cluster, singles) = (shared(), Servers::start(2)?);
    let urls: Vec<_> = [cluster.url()].into_iter().chain(singles.urls()).collect();
    let locks = connected(builder(&urls), 3);
    for name in cluster.names::<3>("among") {
        let guard = locks.mutex(&name).lock()?;
        assert_eq!(guard.release()?.nodes, 3);
    }
    singles[0].kill()?;
    for name in cluster.names::<3>("among") {
        let guard = lock_in_the_end(&locks, &name);
        assert_eq!(guard.release()?.confirmed, 2);
    }
    Ok(())
}

#[test]
fn a_release_finds_the_key_where_its_slot_has_gone() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let locks = near(cluster).build()?;
    let name = cluster.name_at(0, "followed");
    let slot = cluster.slot_of(&name);
    let guard = lock_in_the_end(&locks, &name);
    cluster.migrate(slot, 1)?;
    assert!(has(cluster, 1, &name));

    drop(guard);

    nothing_is_left_of(cluster, &name);
    // In the middle of it nobody has all keys: the release is refused, and comes again.
    let guard = lock_in_the_end(&locks, &name);
    let migration = cluster.begin_migration(slot, 2)?;
    migration.move_key(&name)?;
    drop(guard);
    migration.finish()?;
    nothing_is_left_of(cluster, &name);
    Ok(())
}

#[test]
fn several_names_have_to_be_in_one_slot_where_a_node_is_a_cluster() -> TestResult {
    needs!(Clusters);
    let (cluster, singles) = (shared(), Servers::start(1)?);
    let locks = one(cluster);
    let err = locks.multi_lock(["a", "b"]).try_lock().unwrap_err();
    assert!(matches!(err, AcquireError::SeveralSlots), "{err}");
    assert!(err.to_string().contains("{order}:a"), "{err}");
    let guard = locks.multi_lock(["{order}:a", "{order}:b"]).try_lock()?;
    assert!(locks.mutex("{order}:a").try_lock().is_err());
    drop(guard);
    let elsewhere = builder(singles.urls()).build()?;
    drop(elsewhere.multi_lock(["a", "b"]).try_lock()?);
    Ok(())
}

#[test]
fn operators_see_the_locks_on_all_masters() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let locks = one(cluster);
    let names = cluster.names::<3>("seen");
    let _guards: Vec<_> = names
        .iter()
        .map(|it| locks.mutex(it).try_lock().unwrap())
        .collect();
    let _permit = locks.semaphore("seen-permits", 2).try_acquire()?;

    let seen = one(cluster).list(b"seen-*")?;

    assert!(seen.is_complete());
    assert_eq!(seen.locks().len(), 4, "{seen:?}");
    for name in &names {
        let stored = locks.mutex(name).inspect()?.nodes()[0]
            .stored
            .clone()
            .unwrap();
        assert!(matches!(stored.key, StoredKey::Held { .. }), "{stored:?}");
    }
    // Another test leaves a slot without owner for a while.
    eventually("the check finds nothing", || {
        let checks = locks.check_nodes();
        checks[0].is_fine() && checks[0].round_trip.is_some()
    });
    Ok(())
}

#[test]
fn where_nobody_serves_a_slot_it_is_said() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let locks = one(cluster);
    let (name, other) = (cluster.name_at(0, "hole"), cluster.name_at(1, "hole"));
    drop(lock_in_the_end(&locks, &name));
    let slot = cluster.slot_of(&name);
    cluster.drop_slot(slot)?;

    eventually("nobody serves the slot", || {
        locks
            .mutex(&name)
            .try_lock()
            .is_err_and(|err| matches!(failure(&err, 0), NodeFailure::SlotNotServed { .. }))
    });
    eventually("the check says so", || {
        locks.check_nodes()[0]
            .findings
            .contains(&NodeFinding::SlotsNotServed { count: 1 })
    });
    drop(lock_in_the_end(&locks, &other));
    cluster.add_slot(slot, 0)?;
    drop(lock_in_the_end(&locks, &name));
    Ok(())
}

#[test]
fn a_server_that_is_no_cluster_and_a_cluster_that_was_given_as_a_server_are_told_apart()
-> TestResult {
    needs!(Clusters);
    let (cluster, singles) = (shared(), Servers::start(1)?);
    let said = |url: String| {
        let locks = builder([url]).build().unwrap();
        let failure = |err| failure(&err, 0).clone();
        locks
            .mutex("report")
            .try_lock()
            .map_err(failure)
            .unwrap_err()
    };
    let failure = said(format!("redis+cluster://{}", singles[0].addr()));
    assert!(says(&failure, "not part of a cluster; "), "{failure}");
    let failure = said(cluster.servers[0].url());
    assert!(says(&failure, "part of a cluster; "), "{failure}");
    assert!(
        failure.to_string().contains("redis+cluster://"),
        "{failure}"
    );
    let nobody = said("redis+cluster://127.0.0.1:1,127.0.0.1:2".to_owned());
    assert!(
        says(
            &nobody,
            "no server of the cluster says who serves which slots"
        ),
        "{nobody}"
    );
    Ok(())
}

/// A manager holds a lock on a cluster and one server more, and the cluster's master dies before its replica has heard of it. That
/// is made the master, and another manager, which has all three nodes, wants the lock. What closes this hole is in `clusters`: if
/// this fails, what is tested there proves nothing.
#[test]
fn without_quarantine_a_failover_in_a_cluster_makes_two_holders() -> TestResult {
    needs!(Clusters);
    let (cluster, singles) = (Cluster::start(1)?, Servers::start(2)?);
    let urls: Vec<_> = [cluster.url()].into_iter().chain(singles.urls()).collect();
    let other = connected(builder(&urls), 3);
    let holder = builder(&urls[..2]).ttl(secs(300)).build()?;
    cluster.cut_replication()?;
    let guard = lock_in_the_end(&holder, "report");
    assert!(has(&cluster, 0, "report") && !has(&cluster, 1, "report"));

    cluster.servers[0].kill()?;
    cluster.take_over(1)?;
    let theirs = lock_in_the_end(&other, "report");

    assert!(guard.is_valid() && theirs.is_valid(), "two hold it");
    Ok(())
}
