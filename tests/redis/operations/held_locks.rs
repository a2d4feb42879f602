//! What a manager says of the locks that it holds, and of its nodes, without asking anybody.

use devnodes::{Servers, eventually};
use quorlock::{LockManager, Lost};

use crate::support::*;

fn names(locks: &LockManager) -> Vec<String> {
    locks.held().iter().map(|it| it.lock.to_string()).collect()
}

#[test]
fn what_a_manager_holds_is_listed_until_it_is_released_and_nothing_of_others() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, others) = (
        builder(servers.urls()).ttl(LONG).build()?,
        manager(&servers),
    );
    assert!(locks.held().is_empty());

    let first = locks.mutex("first").class("jobs").lock()?;
    let second = locks.multi_lock(["a", "b"]).lock()?;
    let permit = locks.semaphore("mail", 2).acquire()?;
    let theirs = others.mutex("theirs").lock()?;

    let held = locks.held();
    assert_eq!(names(&locks), ["first", second_name(&held), "mail"]);
    assert_eq!(
        (held[0].lock.name(), held[0].lock.class(), held[0].token),
        (&b"first"[..], "jobs", first.fencing_token())
    );
    assert_eq!(held[1].lock.class(), "other");
    assert!(
        held.iter()
            .all(|it| LONG / 2 < it.left && it.left < LONG && it.age < LONG / 2),
        "{held:?}"
    );
    assert!(held[2].age <= held[0].age);

    first.release()?;
    drop((second, permit));
    assert!(locks.held().is_empty());
    drop(theirs);
    Ok(())
}

/// However several names are written together, all of them are in it.
fn second_name(held: &[quorlock::observer::HeldLock]) -> &str {
    let name = std::str::from_utf8(held[1].lock.name()).unwrap();
    assert!(name.contains('a') && name.contains('b'), "{name}");
    name
}

#[test]
fn a_hold_that_was_lost_is_not_listed_and_a_write_lock_that_became_a_read_lock_is_as_old_as_it_was()
-> TestResult {
    let servers = Servers::start(3)?;
    let locks = builder(servers.urls()).ttl(LONG).build()?;

    let lost = locks.mutex("lost").lock()?;
    del_all(&servers, "lost");
    assert!(lost.extend(LONG).is_err());
    assert!(locks.held().is_empty());

    let writer = locks.rw_lock("catalog").write()?;
    let later = locks.mutex("later").lock()?;
    let before = locks.held()[0].age;
    let reader = writer.downgrade()?;
    let held = locks.held();
    assert!(before < held[0].age, "{held:?}");
    assert_eq!(names(&locks), ["catalog", "later"]);
    drop(later);
    locks.shutdown();
    assert!(locks.held().is_empty() && reader.check() == Err(Lost::ShutDown));
    Ok(())
}

#[test]
fn of_each_node_is_known_whether_it_is_there_and_what_it_has_answered() -> TestResult {
    needs!(Settings);
    let servers = Servers::start(3)?;
    let locks = builder(servers.urls())
        .response_timeout(ms(250))
        .ttl(LONG)
        .build()?;
    let before = locks.stats().nodes;
    assert!(
        before
            .iter()
            .all(|it| !it.up && it.connections == 0 && it.answers == 0),
        "{before:?}"
    );
    for (index, node) in before.iter().enumerate() {
        assert_eq!(
            (node.node.index(), &*node.address),
            (index, &*shown_address(&servers[index]))
        );
    }

    connect(&locks, 3);
    eventually("all have answered", || {
        locks.stats().nodes.iter().all(|it| it.up && 0 < it.answers)
    });
    let total = locks.stats();
    assert_eq!(
        total.connections,
        total.nodes.iter().map(|it| it.connections).sum::<u64>()
    );

    servers[0].kill()?;
    servers[1].pause()?;
    eventually("one is down and one is silent", || {
        let _ = locks.mutex("report").try_lock();
        let nodes = locks.stats().nodes;
        !nodes[0].up
            && 0 < nodes[0].connection_failures
            && nodes[1].up
            && nodes[1].silent
            && 0 < nodes[1].unanswered
    });
    servers[1].resume()?;
    eventually("it has caught up", || {
        let _ = locks.mutex("report").try_lock();
        !locks.stats().nodes[1].silent
    });

    let failures = locks.stats().nodes[2].failures;
    servers[2].command(&["CONFIG", "SET", "min-replicas-to-write", "1"])?;
    eventually("its failures are counted", || {
        let _ = locks.mutex("report").try_lock();
        failures < locks.stats().nodes[2].failures
    });
    Ok(())
}
