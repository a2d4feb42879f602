//! What a manager says of the locks that it holds, and of its nodes, without asking anybody.

use devnodes::{Servers, eventually};
use quorlock::{LockManager, LostReason};

use crate::support::*;

fn names(locks: &LockManager) -> Vec<String> {
    locks.held().iter().map(|it| it.lock.to_string()).collect()
}

#[test]
fn a_manager_lists_its_own_holds_until_their_release() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = builder(servers.urls()).ttl(LONG).build()?;
    let others = manager(&servers);
    assert!(locks.held().is_empty());

    let first = locks.mutex("first").class("jobs").lock()?;
    let second = locks.multi_lock(["a", "b"]).lock()?;
    let permit = locks.semaphore("mail", 2).acquire()?;
    let theirs = others.mutex("theirs").lock()?;

    let held = locks.held();
    // However several names are written together, all of them are in it.
    let second_name = str::from_utf8(held[1].lock.name())?;
    assert!(second_name.contains('a') && second_name.contains('b'));
    assert_eq!(names(&locks), ["first", second_name, "mail"]);
    assert_eq!(held[0].lock.name(), b"first");
    assert_eq!(held[0].lock.class(), "jobs");
    assert_eq!(held[0].token, first.fencing_token());
    assert_eq!(held[1].lock.class(), "other");
    for hold in &held {
        assert!(LONG / 2 < hold.left && hold.left < LONG, "{hold:?}");
        assert!(hold.age < LONG / 2, "{hold:?}");
    }
    assert!(held[2].age <= held[0].age);

    first.release()?;
    drop((second, permit));
    assert!(locks.held().is_empty());
    drop(theirs);
    Ok(())
}

#[test]
fn a_lost_hold_is_not_listed_nor_one_of_a_manager_that_ended() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = builder(servers.urls()).ttl(LONG).build()?;

    let lost = locks.mutex("lost").lock()?;
    del_all(&servers, "lost");
    assert!(lost.extend(LONG).is_err());
    assert!(locks.held().is_empty());

    let kept = locks.mutex("kept").lock()?;
    assert_eq!(names(&locks), ["kept"]);
    locks.shutdown();
    assert!(locks.held().is_empty() && reason(kept.check()) == Err(LostReason::ShutDown));
    Ok(())
}

#[test]
fn stats_show_connection_and_answers_of_each_node() -> TestResult {
    needs!(Settings);
    let servers = Servers::start(3)?;
    let locks = impatient(servers.urls()).build()?;
    for (index, node) in locks.stats().nodes.iter().enumerate() {
        assert!(!node.up && node.connections == 0 && node.answers == 0);
        assert_eq!(node.node.index(), index);
        assert_eq!(*node.address, *shown_address(&servers[index]));
    }

    connect(&locks, 3);
    eventually("all have answered", || {
        locks.stats().nodes.iter().all(|it| it.up && 0 < it.answers)
    });
    let total = locks.stats();
    let of_nodes = total.nodes.iter().map(|it| it.connections);
    assert_eq!(total.connections, of_nodes.sum());

    servers[0].kill()?;
    servers[1].pause()?;
    eventually("one is down and one is silent", || {
        let _ = locks.mutex("report").try_lock();
        let [down, silent, _] = &locks.stats().nodes[..] else {
            panic!("three nodes")
        };
        let is_down = !down.up && 0 < down.connection_failures;
        is_down && silent.up && silent.silent && 0 < silent.unanswered
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
