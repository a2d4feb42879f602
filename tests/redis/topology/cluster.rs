//! A node that is the owner of one slot of a cluster: `redis+cluster://` and a hash tag in the prefix.
//!
//! Most tests share a cluster, each with a hash tag of its own: starting one takes two seconds. They may move slots, and leave one
//! without owner.

use std::sync::LazyLock;
use std::thread;

use devnodes::{Cluster, Proxy, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::inspection::{LockState, StoredKey};
use quorlock::{Builder, LockManager};

use crate::support::*;
use crate::topology::replicated::{failure_in_the_end, vouched};
use crate::waiting::lists::{listeners_of, waiters_of};

/// Three primaries without replicas.
fn shared() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> =
        LazyLock::new(|| Cluster::builder(3).partial().start().unwrap());
    &CLUSTER
}

/// Locks of one hash tag.
struct Tag<'a> {
    cluster: &'a Cluster,
    tag: String,
    slot: u16,
}

impl<'a> Tag<'a> {
    /// The slot is this server's.
    fn at(cluster: &'a Cluster, server: usize, begin: &str) -> Tag<'a> {
        let tag = cluster.name_at(server, begin);
        let slot = cluster.slot_of(&tag);
        Tag { cluster, tag, slot }
    }

    fn of(&self, urls: impl IntoIterator<Item = impl AsRef<str>>) -> Builder {
        builder(urls).prefix(self.key(""))
    }

    /// For a manager of the cluster alone, without quarantine.
    fn alone(&self) -> Builder {
        self.of([self.cluster.url()])
    }

    fn key(&self, name: &str) -> String {
        format!("{{{}}}:{name}", self.tag)
    }

    /// Whether the server has the lock's key. One that does not serve the slot any more has none.
    fn has(&self, server: usize, name: &str) -> bool {
        self.cluster.servers[server]
            .command(&["KEYS", &self.key(name)])
            .is_ok_and(|it| it.as_array().is_some_and(|it| !it.is_empty()))
    }

    #[track_caller]
    fn nothing_is_left(&self, name: &str) {
        eventually("its key is on no server", || {
            (0..self.cluster.servers.len()).all(|it| !self.has(it, name))
        });
    }
}

fn is_quarantined(failure: &NodeFailure) -> bool {
    matches!(failure, NodeFailure::Quarantined { .. })
}

#[test]
fn locks_of_every_kind_and_name_are_on_the_owner_of_the_slot_alone() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    for server in 0..2 {
        let tag = Tag::at(cluster, server, "kinds");
        let locks = tag.alone().build()?;
        for name in ["", "a", "}", "{", "{}", "{b}", "a}b{c}"] {
            let guard = locks.mutex(name).try_lock()?;
            assert!(
                (0..3).all(|it| tag.has(it, name) == (it == server)),
                "{name}"
            );
            assert_held(&locks.mutex(name).try_lock().unwrap_err());
            guard.extend(secs(20))?;
            guard.release()?;
        }
        let several = locks.multi_lock(["a", "b{c}", "{d}"]).try_lock()?;
        assert_held(&locks.mutex("{d}").try_lock().unwrap_err());
        drop(several);
        let writer = lock_writer(&locks, "catalog{x}");
        assert_held(&locks.rw_lock("catalog{x}").try_read().unwrap_err());
        writer.release()?;
        let reader = locks.rw_lock("catalog{x}").read()?;
        drop(locks.rw_lock("catalog{x}").try_read()?);
        reader.release()?;
        let mail = locks.semaphore("mail", 2);
        let permits = [mail.acquire()?, mail.acquire()?];
        assert_held(&mail.try_acquire().unwrap_err());

        // Operators see them.
        let seen = locks.list(b"*")?;
        assert!(seen.is_complete());
        assert!(!seen.locks().is_empty(), "{seen:?}");
        let stored = mail.inspect()?[0].nodes()[0].stored.clone().unwrap();
        assert!(matches!(stored.key, StoredKey::Held { .. }), "{stored:?}");
        drop(permits);
        eventually("no slot is taken", || {
            let slots = mail.inspect().unwrap();
            slots.iter().all(|it| it.state() == LockState::Free)
        });
        let checks = locks.check_nodes();
        assert!(checks[0].is_fine(), "{}", checks[0]);
    }
    Ok(())
}

fn lock_writer(locks: &LockManager, name: &str) -> quorlock::WriteGuard {
    eventually_some("a writer", || locks.rw_lock(name).try_write().ok())
}

#[test]
fn a_contended_lock_moves_with_its_slot_and_is_handed_over_there() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let tag = Tag::at(cluster, 0, "moving");
    let managers = repeat(2, || tag.alone().ttl(LONG).build().unwrap());
    let guard = lock_in_the_end(&managers[0], "report");
    let mutex = managers[1].mutex("report");
    let waiter = thread::spawn(move || mutex.lock());
    let at = &cluster.servers[0];
    eventually("it is on the list, and listens there", || {
        let (waiters, listeners) = (waiters_of(at, &tag.key("report")), listeners_of(at));
        waiters.len() == 1 && waiters.iter().all(|it| listeners.contains(it))
    });

    cluster.migrate(tag.slot, 1)?;

    assert!(tag.has(1, "report"));
    eventually("it is extended at the new owner", || {
        guard.extend(LONG).is_ok()
    });
    let token = guard.fencing_token();
    drop(guard);
    let theirs = join(waiter)?;
    assert!(token < theirs.fencing_token());
    theirs.release()?;
    tag.nothing_is_left("report");
    Ok(())
}

#[test]
fn b11_a_check_finds_a_migrating_slot_whose_lock_is_neither_granted_nor_lost() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let tag = Tag::at(cluster, 1, "between");
    let managers = repeat(2, || tag.alone().ttl(LONG).build().unwrap());
    let guard = lock_in_the_end(&managers[0], "report");
    assert!(managers[0].check_nodes()[0].is_fine());
    let is_refused = |it: &NodeFailure| matches!(it, NodeFailure::SlotNotServed { .. });

    // The record and the lock are still there. New locks are refused.
    let migration = cluster.begin_migration(tag.slot, 2)?;
    let row = managers[0].check_nodes().remove(0);
    assert!(row.failure.as_ref().is_some_and(is_refused), "{row}");
    failure_in_the_end(&tag.alone().build()?, is_refused);

    migration.move_key(&tag.key("report"))?;
    let failure = failure_in_the_end(&managers[1], is_refused);
    assert!(failure.to_string().contains("CLUSTER SLOTS"), "{failure}");
    assert!(guard.is_valid() && tag.has(2, "report"));
    // Its release is refused now, and brought when the slot is somewhere.
    drop(guard);
    migration.finish()?;

    drop(lock_in_the_end(&managers[1], "report"));
    tag.nothing_is_left("report");
    Ok(())
}

#[test]
fn an_unserved_slot_has_its_own_error() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let tag = Tag::at(cluster, 0, "hole");
    let locks = tag.alone().build()?;
    drop(lock_in_the_end(&locks, "report"));
    cluster.drop_slot(tag.slot)?;

    for locks in [&locks, &tag.alone().build()?] {
        failure_in_the_end(locks, |it| matches!(it, NodeFailure::SlotNotServed { .. }));
    }

    cluster.add_slot(tag.slot, 0)?;
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

#[test]
fn a_slot_taken_without_its_keys_allows_no_second_holder() -> TestResult {
    needs!(Clusters);
    let cluster = shared();
    let tag = Tag::at(cluster, 2, "taken");
    let managers = repeat(2, || vouched(tag.alone()));
    let (here, there) = (&managers[0], &managers[1]);
    drop(lock_in_the_end(there, "report"));
    let guard = lock_in_the_end(here, "report");

    for by in [0, 2] {
        cluster.take_slot(tag.slot, by)?;

        assert!(!tag.has(by, "report"), "nobody remembers it");
        assert_nobody_gets("report", &[there, &tag.alone().quarantine(true).build()?]);
    }
    eventually("its holder hears of it", || {
        guard.extend(LONG).is_err() && !guard.is_valid()
    });
    Ok(())
}

/// Nobody else gets the lock that is held: all report that the new owner of its slot has no vote yet.
#[track_caller]
fn assert_nobody_gets(name: &str, managers: &[&LockManager]) {
    for locks in managers {
        eventually("the new owner is asked and keeps silent", || {
            match locks.mutex(name).try_lock() {
                Ok(_) => panic!("a second holder"),
                Err(err) => match answer(&err, 0) {
                    NodeAnswer::Failed(failure) => is_quarantined(failure),
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
fn a_promoted_replica_allows_no_second_holder() -> TestResult {
    needs!(Clusters);
    let cluster = Cluster::builder(3).replicas(1).start()?;
    let tags = [0, 1, 2].map(|it| Tag::at(&cluster, it, "report"));
    let managers = tags
        .each_ref()
        .map(|tag| [vouched(tag.alone()), vouched(tag.alone())]);
    let hold = |here: &LockManager| here.mutex("report").renew(false).try_lock().unwrap();
    let guards = managers.each_ref().map(|[here, _]| hold(here));

    cluster.take_over(3)?;
    cluster.fail_over(4)?;
    let promoted = [3, 4, cluster.kill(2)?];

    for ((tag, [_, there]), server) in tags.iter().zip(&managers).zip(promoted) {
        // As if the last writes had not come to it.
        del(&cluster.servers[server], &tag.key("report"));
        del(&cluster.servers[server], &fence(&tag.key("report")));
        assert_nobody_gets("report", &[there, &tag.alone().quarantine(true).build()?]);
    }
    assert!(guards.iter().all(|it| it.is_valid()));
    Ok(())
}

#[test]
fn a_lock_outlives_the_migration_of_its_slot_and_the_node_joins_again() -> TestResult {
    needs!(Clusters);
    let (cluster, singles) = (shared(), Servers::start(2)?);
    let tag = Tag::at(cluster, 0, "among");
    let urls: Vec<_> = [cluster.url()].into_iter().chain(singles.urls()).collect();
    let short = |it: Builder| {
        it.ttl(secs(5))
            .max_ttl(secs(5))
            .response_timeout(secs(1))
            .connect_timeout(secs(1))
    };
    let managers = repeat(2, || vouched(short(tag.of(&urls))));
    let guard = managers[0].mutex("report").lock()?;

    let migration = cluster.begin_migration(tag.slot, 2)?;
    guard.extend(secs(5))?;
    assert_held(&managers[1].mutex("report").try_lock().unwrap_err());
    migration.finish()?;

    let failure = || managers[1].check_nodes()[0].failure.clone();
    eventually("the new owner has no vote", || {
        failure().is_some_and(|it| is_quarantined(&it))
    });
    assert!(managers[1].mutex("report").try_lock().is_err());
    eventually("it joins again", || failure().is_none());
    assert!(guard.is_valid());
    guard.release()?;
    singles[0].kill()?;
    let _guard = lock_in_the_end(&managers[1], "report");
    assert!(tag.has(2, "report"));
    Ok(())
}

#[test]
fn grants_of_a_slot_owner_cut_off_with_its_client_do_not_count() -> TestResult {
    needs!(Clusters);
    let cluster = Cluster::builder(3).start()?;
    let tag = Tag::at(&cluster, 0, "report");
    let locks = tag.alone().connect_timeout(ms(400)).build()?;
    drop(lock_in_the_end(&locks, "report"));

    // It goes on serving for the cluster's own timeout, which is a minute here.
    let others: [&Server; 2] = [&cluster.servers[1], &cluster.servers[2]];
    others.iter().try_for_each(|it| it.pause())?;

    failure_in_the_end(&locks, |it| matches!(it, NodeFailure::NoPrimary { .. }));
    set(
        &cluster.servers[0],
        &tag.key("other"),
        "it could have granted it",
    );
    others.iter().try_for_each(|it| it.resume())?;
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

/// The old owner and the replica that was promoted in its place serve the same slot side by side, and a client is cut off together
/// with the old one: with the cluster as its only node, and with two single servers more, of which each side reaches one.
#[test]
fn a_client_cut_off_with_an_old_owner_loses_its_lock_before_others_get_it() -> TestResult {
    needs!(Clusters);
    if !long_tests() {
        return Ok(());
    }
    let cluster = Cluster::builder(3).replicas(1).cuttable().start()?;
    for server in &cluster.servers {
        server.command(&["ACL", "SETUSER", "here", "on", ">pw", "~*", "&*", "+@all"])?;
    }
    let singles = Servers::start(2)?;
    let ways = [0, 1].map(|it: usize| Proxy::start(singles[it].addr()).unwrap());
    let close = |way: &Proxy| {
        way.refuse(true);
        way.cut();
    };
    let tag = Tag::at(&cluster, 0, "report");
    let quick = |urls: Vec<String>| {
        vouched(
            tag.of(urls)
                .ttl(secs(1))
                .max_ttl(secs(1))
                .response_timeout(ms(250))
                .connect_timeout(ms(400)),
        )
    };
    let (theirs, ours) = (cluster.url(), cluster.url().replace("://", "://here:pw@"));
    let there = [
        quick(vec![theirs.clone()]),
        quick(vec![theirs, ways[0].url(), singles[1].url()]),
    ];
    let here = [
        quick(vec![ours.clone()]),
        quick(vec![ours, singles[0].url(), ways[1].url()]),
    ];
    let names = ["alone", "among"];
    for (locks, name) in there.iter().chain(&here).zip(names.iter().cycle()) {
        drop(lock_in_the_end(locks, name));
    }

    // Neither the new owner nor the single server of the other side has heard of these locks.
    cluster.cut_replication()?;
    close(&ways[1]);
    let guards = [0, 1].map(|it: usize| lock_in_the_end(&here[it], names[it]));
    close(&ways[0]);
    for server in cluster.servers.iter().skip(1) {
        server.command(&["ACL", "DELUSER", "here"])?;
    }
    assert_eq!(cluster.cut_off(0)?, 3);

    // Until they hear of the new owner they may get it at the old one, after it was lost there.
    for locks in &there {
        error_in_the_end(locks, "other", |err| match answer(err, 0) {
            NodeAnswer::Failed(failure) => is_quarantined(failure),
            _ => false,
        });
    }
    for ((locks, name), guard) in there.iter().zip(names).zip(&guards) {
        let theirs = lock_in_the_end(locks, name);
        assert!(!guard.is_valid(), "two hold it");
        assert!(theirs.is_valid() && tag.has(3, name));
    }
    for locks in &here {
        assert!(locks.mutex("other").try_lock().is_err());
    }
    // Both would grant it.
    for it in [0, 3] {
        set(&cluster.servers[it], &tag.key("other"), "1");
        let role = cluster.servers[it].info("role");
        assert_eq!(role.as_deref(), Some("master"));
    }
    Ok(())
}

/// A thousand slots stand alone, as two primaries have them in turn.
#[test]
fn h23_a_cluster_with_a_slot_table_above_64_kib_votes() -> TestResult {
    needs!(Clusters);
    let servers = Servers::start_with(2, |it| it.arg("--cluster-enabled", "yes"))?;
    let port = servers[1].port().to_string();
    servers[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port])?;
    for (parity, server) in servers.iter().enumerate() {
        let slots = (0..16_384).filter(|it| if *it < 1_000 { it % 2 } else { 0 } == parity);
        let command = ["CLUSTER".to_owned(), "ADDSLOTS".to_owned()];
        let command = command.into_iter().chain(slots.map(|it| it.to_string()));
        server.command(&command.collect::<Vec<_>>())?;
    }
    eventually("both have heard of all slots", || {
        servers.iter().all(|it| {
            let info = it.command(&["CLUSTER", "INFO"]).unwrap();
            let slots = it.command(&["CLUSTER", "SLOTS"]).unwrap();
            info.as_str().unwrap().contains("cluster_state:ok")
                && 1_000 < slots.as_array().unwrap().len()
        })
    });
    let [a, b] = [0, 1].map(|it: usize| servers[it].addr());
    let url = format!("redis+cluster://{a},{b},127.0.0.1:1");
    let locks = builder([&url]).prefix("{a}").build()?;
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}
