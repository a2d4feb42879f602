//! A node that is a cluster: `redis+cluster://`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use devnodes::{Cluster, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{AcquireError, Builder, LockManager};

use crate::replicated::vouched;
use crate::support::*;

/// Without quarantine.
fn one(cluster: &Cluster) -> Builder {
    builder([cluster.url()])
}

#[test]
fn quarantine_costs_a_new_slot_nothing_once_the_cluster_is_vouched_for() -> TestResult {
    needs!(Clusters);
    if !long_tests() {
        return Ok(());
    }
    let cluster = Cluster::start(3)?;
    let first = one(&cluster).quarantine(true).build()?;
    let err = first.mutex("report").try_lock().unwrap_err();
    assert!(
        matches!(
            &err.nodes()[0].answer,
            NodeAnswer::Failed(NodeFailure::Quarantined { .. })
        ),
        "nobody has vouched: {err}"
    );
    let checks = first.admin().vouch();
    assert!(checks[0].failure.is_none(), "{}", checks[0]);
    for name in (0..30).map(|it| format!("report-{it}")) {
        let _guard = first.mutex(&name).try_lock()?;
    }
    // And for others that come later.
    let second = one(&cluster).quarantine(true).build()?;
    for name in (0..60).map(|it| format!("report-{it}")) {
        let _guard = second.mutex(&name).try_lock()?;
    }
    Ok(())
}

/// A cluster whose masters have replicas, and two servers more: a lock lives on while the cluster cannot confirm it.
struct Nodes {
    cluster: Cluster,
    singles: Servers,
}

impl Nodes {
    fn start() -> Nodes {
        let cluster = Cluster::builder(3).replicas(1).start().unwrap();
        Nodes {
            cluster,
            singles: Servers::start(2).unwrap(),
        }
    }

    fn builder(&self) -> Builder {
        builder([self.cluster.url()].into_iter().chain(self.singles.urls()))
    }
}

/// Nobody else gets the lock that is held, whatever becomes of the cluster, in which nobody remembers it any more: all say in the
/// end that the new owner of its slot has no vote yet.
#[track_caller]
fn assert_nobody_gets(name: &str, managers: &[&LockManager]) {
    for locks in managers {
        eventually("the new owner is asked and keeps silent", || {
            match locks.mutex(name).try_lock() {
                Ok(_) => panic!("a second holder"),
                Err(err) => match answer(&err, 0) {
                    NodeAnswer::Failed(NodeFailure::Quarantined { .. }) => true,
                    NodeAnswer::Granted | NodeAnswer::GrantedBehind => {
                        panic!("a grant that counts: {err}")
                    }
                    _ => false,
                },
            }
        });
    }
}

#[test]
fn a_slot_that_was_taken_without_its_keys_makes_no_second_holder() -> TestResult {
    needs!(Clusters);
    let cluster = Cluster::start(3)?;
    let (here, there) = (vouched(one(&cluster)), vouched(one(&cluster)));
    let [name, ..] = cluster.names::<3>("report");
    // Both know the slot, and the master that is about to take it.
    for locks in [&here, &there] {
        cluster
            .names::<3>("report")
            .iter()
            .for_each(|it| drop(lock_in_the_end(locks, it)));
    }
    let _guard = here.mutex(&name).renew(false).try_lock()?;

    cluster.take_slot(cluster.slot_of(&name), 1)?;

    assert!(!cluster.is_at(1, &name), "nobody remembers it");
    let fresh = one(&cluster).quarantine(true).build()?;
    assert_nobody_gets(&name, &[&there, &fresh]);
    // Other slots of both are as they were.
    for other in &cluster.names::<3>("report")[1..] {
        drop(there.mutex(other).try_lock()?);
    }
    Ok(())
}

#[test]
fn a_promoted_replica_makes_no_second_holder() -> TestResult {
    needs!(Clusters);
    let cluster = Cluster::builder(3).replicas(1).start()?;
    let (here, there) = (vouched(one(&cluster)), vouched(one(&cluster)));
    let [name, manual, killed] = cluster.names::<3>("report");
    for name in [&name, &manual, &killed] {
        drop(lock_in_the_end(&there, name));
    }
    let _guards =
        [&name, &manual, &killed].map(|it| here.mutex(it).renew(false).try_lock().unwrap());

    cluster.take_over(3)?;
    cluster.fail_over(4)?;
    // As if the last writes had not come to it: to one not even the counter that was there before.
    del(&cluster.servers[3], &name);
    del(&cluster.servers[3], &fence(&name));
    del(&cluster.servers[4], &manual);
    let fresh = one(&cluster).quarantine(true).build()?;
    assert_nobody_gets(&name, &[&there, &fresh]);
    assert_nobody_gets(&manual, &[&there, &fresh]);

    let promoted = cluster.kill(2)?;
    del(&cluster.servers[promoted], &killed);
    del(&cluster.servers[promoted], &fence(&killed));
    assert_nobody_gets(&killed, &[&there, &fresh]);
    Ok(())
}

#[test]
fn a_lock_outlives_a_failover_and_the_migration_of_its_slot_on_the_other_nodes() -> TestResult {
    needs!(Clusters);
    if !long_tests() {
        return Ok(());
    }
    let nodes = Nodes::start();
    let cluster = &nodes.cluster;
    let (here, there) = (vouched(nodes.builder()), vouched(nodes.builder()));
    let [killed, moved, _] = cluster.names::<3>("report");
    let guards = [&killed, &moved].map(|it| here.mutex(it).lock().unwrap());

    cluster.kill(0)?;
    let slot = cluster.slot_of(&moved);
    let migration = cluster.begin_migration(slot, 2)?;
    for guard in &guards {
        guard.extend(secs(20))?;
    }
    assert!(there.mutex(&moved).try_lock().unwrap_err().is_held());
    migration.finish()?;

    for (name, guard) in [&killed, &moved].into_iter().zip(guards) {
        guard.extend(secs(20))?;
        assert!(there.mutex(name).try_lock().is_err());
        guard.release()?;
        // The other nodes are enough while the cluster keeps silent about these slots.
        drop(lock_in_the_end(&there, name));
    }
    Ok(())
}

#[test]
fn a_server_that_has_lost_a_slot_is_not_told_of_a_release_again_and_again() -> TestResult {
    needs!(Clusters);
    if !long_tests() {
        return Ok(());
    }
    let cluster = Cluster::start(3)?;
    let locks = one(&cluster).build()?;
    let [name, ..] = cluster.names::<3>("report");
    let guard = locks.mutex(&name).ttl(LONG).renew(false).try_lock()?;
    cluster.migrate(cluster.slot_of(&name), 1)?;
    // The map is known by then.
    drop(lock_in_the_end(&locks, &format!("{{{name}}}-other")));

    drop(guard);

    eventually("the key is gone", || !cluster.is_at(1, &name));
    let refused = || cluster.servers[0].info("errorstat_MOVED");
    let clock = &cluster.names::<3>("report")[2];
    eventually(
        "for as long as several pauses between releases that are sent again the old owner hears nothing",
        || {
            let before = refused();
            cluster.servers[2]
                .command(&["SET", clock, "", "PX", "700"])
                .expect("a server that runs");
            eventually("time passes", || !cluster.is_at(2, clock));
            refused() == before
        },
    );
    Ok(())
}

#[test]
fn a_contended_lock_has_one_holder_while_its_slot_moves() -> TestResult {
    needs!(Clusters);
    if !long_tests() {
        return Ok(());
    }
    let nodes = Nodes::start();
    let cluster = &nodes.cluster;
    let [name, ..] = cluster.names::<3>("report");
    let slot = cluster.slot_of(&name);
    let (holders, turns, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let managers = [vouched(nodes.builder()), vouched(nodes.builder())];
    std::thread::scope(|scope| -> TestResult {
        for locks in &managers {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        let Ok(guard) = locks.mutex(&name).try_lock_for(secs(20)) else {
                            continue;
                        };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                        std::thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                        turns.fetch_add(1, Ordering::SeqCst);
                        drop(guard);
                    }
                });
            }
        }
        let ended = [1, 2, 0].into_iter().try_for_each(|to| {
            let before = turns.load(Ordering::SeqCst);
            eventually("they take turns", || {
                before + 10 < turns.load(Ordering::SeqCst)
            });
            cluster.migrate(slot, to)
        });
        let before = turns.load(Ordering::SeqCst);
        eventually("they take turns", || {
            before + 10 < turns.load(Ordering::SeqCst)
        });
        over.store(true, Ordering::SeqCst);
        Ok(ended?)
    })
}

#[test]
fn a_master_that_is_cut_off_together_with_its_client_grants_nothing_that_counts() -> TestResult {
    needs!(Clusters);
    let cluster = Cluster::start(3)?;
    let locks = one(&cluster).connect_timeout(ms(400)).build()?;
    let [name, ..] = cluster.names::<3>("report");
    drop(lock_in_the_end(&locks, &name));

    // It goes on serving for the cluster's own timeout, which is a minute here.
    let cut_off: [&Server; 2] = [&cluster.servers[1], &cluster.servers[2]];
    cut_off.iter().try_for_each(|it| it.pause())?;

    let failure = |err: &AcquireError| failure(err, 0).clone();
    eventually("nobody confirms that it is a master", || {
        locks
            .mutex(&name)
            .try_lock()
            .is_err_and(|err| says(&failure(&err), UNCONFIRMED))
    });
    cut_off.iter().try_for_each(|it| it.resume())?;
    drop(lock_in_the_end(&locks, &name));
    Ok(())
}

/// Each slot stands alone, as two masters have them in turn.
#[test]
fn h23_a_cluster_that_says_more_than_64_kib_of_its_slots_votes() -> TestResult {
    needs!(Clusters);
    let servers = Servers::start_with(2, |it| it.arg("--cluster-enabled", "yes"))?;
    servers[0].command(&[
        "CLUSTER",
        "MEET",
        "127.0.0.1",
        &servers[1].port().to_string(),
    ])?;
    for (parity, server) in servers.iter().enumerate() {
        let slots = (0..16_384)
            .filter(|it| it % 2 == parity)
            .map(|it| it.to_string());
        let command: Vec<_> = ["CLUSTER".to_owned(), "ADDSLOTS".to_owned()]
            .into_iter()
            .chain(slots)
            .collect();
        server.command(&command)?;
    }
    let says = |server: &Server, what| {
        server
            .command(&["CLUSTER", what])
            .unwrap()
            .as_str()
            .unwrap()
            .to_owned()
    };
    eventually("both have heard of all slots", || {
        servers.iter().all(|it| {
            says(it, "INFO").contains("cluster_state:ok") && 80_000 < says(it, "NODES").len()
        })
    });
    let locks = builder([servers[0].url().replace("redis://", "redis+cluster://")]).build()?;
    // Of each of the two.
    for name in ["a", "b"] {
        drop(lock_in_the_end(&locks, name));
    }
    Ok(())
}
