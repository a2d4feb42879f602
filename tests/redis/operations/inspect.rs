//! Looking at a lock, and taking it from whoever holds it.

use std::thread;

use devnodes::{Servers, eventually};
use quorlock::error::NodeAnswer;
use quorlock::inspection::{InspectedNode, Inspection, LockState, StoredKey, StoredLock};
use quorlock::{AcquireError, LockManager};

use crate::nodes::access_list::access_list;
use crate::support::*;
use crate::waiting::lists::hold;

/// What the nodes store about "report".
fn report(locks: &LockManager) -> Inspection {
    locks.mutex("report").inspect().unwrap()
}

/// The same, once it fits.
fn seen(locks: &LockManager, fits: impl Fn(&Inspection) -> bool) -> Inspection {
    let mut seen = report(locks);
    eventually("the nodes store what they should", || {
        seen = report(locks);
        fits(&seen)
    });
    seen
}

/// Held by a client that sets no expiry.
const LEAKED: LockState = LockState::Held {
    holder: None,
    left: None,
};

fn on_all(seen: &Inspection, fits: impl Fn(&StoredLock) -> bool) -> bool {
    seen.nodes()
        .iter()
        .all(|it| it.stored.as_ref().is_ok_and(&fits))
}

fn is_held(seen: &Inspection) -> bool {
    on_all(seen, |it| matches!(it.key, StoredKey::Held { .. }))
}

#[test]
fn an_inspection_shows_holder_and_ttl_and_later_the_counter() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(builder(servers.urls()).owner_label("night"), 3);
    let before = report(&locks);
    assert_eq!(before.state(), LockState::Free);
    assert_eq!(before.name(), b"report");
    assert!(on_all(&before, |it| it.counter.is_none() && it.left.is_none()));

    let guard = locks.mutex("report").lock()?;
    let held = seen(&locks, is_held);
    let LockState::Held {
        holder: Some(holder),
        left: Some(left),
    } = held.state()
    else {
        panic!("{held:?}")
    };
    assert!(holder.ends_with("/night"), "{holder}");
    assert!(secs(0) < left && left <= secs(20), "{left:?}");
    let number = guard.fencing_token().get();
    assert!(on_all(&held, |it| it.counter == Some(number)), "{held:?}");
    let token = String::from_utf8(servers[0].get("report").unwrap())?;
    let shown = format!("{} {held:?}", held.state());
    assert!(shown.contains(&*holder), "{shown}");
    assert!(!shown.contains(&token[..8]), "{shown}");

    guard.release()?;
    let after = seen(&locks, |it| on_all(it, |it| it.key == StoredKey::Missing));
    assert_eq!(after.state(), LockState::Free);
    assert!(on_all(&after, |it| it.counter == Some(number)), "{after:?}");
    Ok(())
}

/// Looks at everything on all servers.
fn look(locks: &LockManager) -> Inspection {
    eventually("all answer", || {
        locks.check_nodes().iter().all(|it| it.round_trip.is_some())
    });
    locks.list("*").unwrap();
    report(locks)
}

#[test]
fn h25_checks_and_inspections_write_nothing() -> TestResult {
    let servers = Servers::start(3)?;
    let kinds = || [true, false].map(|it| builder(servers.urls()).quarantine(it).build().unwrap());
    let [with, without] = kinds();
    for locks in [&with, &without] {
        assert!(on_all(&look(locks), |it| it.key == StoredKey::Missing));
        assert!(
            locks.check_nodes().iter().all(|it| it.max_ttl.is_none()),
            "no program needs one"
        );
    }
    assert!(
        servers.iter().all(|it| it.key_count() == 0),
        "a look has left something"
    );

    let _guard = without.mutex("report").lock()?;
    eventually("all have it", || servers.holders("report") == 3);
    let records = || servers.iter().map(record).collect::<Vec<_>>();
    let before = records();
    assert!(before.iter().all(Option::is_some));

    let [other, same] = kinds();
    for locks in [&without, &with, &other, &same] {
        assert!(is_held(&look(locks)));
        assert_eq!(
            locks.stats().connections,
            3,
            "a look has ended a connection"
        );
    }
    assert_eq!(records(), before, "a look has changed a record");
    Ok(())
}

#[test]
fn an_inspection_counts_waiting_calls_and_the_longest_wait() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, others) = (manager(&servers), [manager(&servers), manager(&servers)]);
    let guard = lock_in_the_end(&locks, "report");
    let calls = others.map(|it| thread::spawn(move || it.mutex("report").lock().map(drop)));

    let waits = |it: &StoredLock| it.waiting == 2 && it.waiting_for.is_some();
    let held = seen(&locks, |it| on_all(it, waits));
    let next = seen(&locks, |it| on_all(it, waits));
    for (earlier, later) in held.nodes().iter().zip(next.nodes()) {
        let waited = |it: &InspectedNode| it.stored.as_ref().unwrap().waiting_for;
        assert!(waited(earlier) <= waited(later), "{held:?}, then {next:?}");
    }

    guard.release()?;
    calls.into_iter().try_for_each(|it| join(it))?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn readers_are_counted_and_named() -> TestResult {
    let servers = Servers::start(3)?;
    let [a, b] = ["a", "b"].map(|it| connected(builder(servers.urls()).owner_label(it), 3));
    let guards = [a.rw_lock("report").read()?, b.rw_lock("report").read()?];

    let of_two = |it: &StoredLock| matches!(&it.key, StoredKey::Read { count: 2, .. });
    let held = seen(&a, |it| on_all(it, of_two));

    let is_read = |it| matches!(it, LockState::Read { readers: 2, left } if left.is_some());
    assert!(is_read(held.state()), "{held:?}");
    let StoredKey::Read { readers, .. } = &held.nodes()[0].stored.as_ref().unwrap().key else {
        panic!("{held:?}")
    };
    let label = |holder: &str| holder.rsplit('/').next().unwrap().to_owned();
    let labels = readers.iter().map(|it| label(it.holder.as_ref().unwrap()));
    let mut labels: Vec<_> = labels.collect();
    labels.sort();
    assert_eq!(labels, ["a", "b"]);
    drop(guards);
    Ok(())
}

#[test]
fn an_inspection_shows_foreign_keys_and_failed_nodes() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(builder(servers.urls()), 3);
    servers[0].command(&["LPUSH", "report", "a"])?;
    set(&servers[1], "report", &"x".repeat(10_000));
    for key in [
        "quorlock:fence:report",
        "quorlock:waiting:report",
        "quorlock:mark:report",
    ] {
        servers[1].command(&["LPUSH", key, "a"])?;
    }

    let found = report(&locks);
    let stored = |node: usize| found.nodes()[node].stored.clone().unwrap();
    assert_eq!(
        (stored(0).key, stored(1).key, stored(2).key),
        (StoredKey::OtherType, StoredKey::Foreign, StoredKey::Missing)
    );
    assert_eq!(
        (stored(1).counter, stored(1).waiting, stored(1).left),
        (None, 0, None)
    );
    assert_eq!(found.state(), LockState::NoMajority);
    servers[2].command(&["LPUSH", "report", "a"])?;
    assert_eq!(report(&locks).state(), LockState::KeyInUse);
    del(&servers[2], "report");
    set(&servers[2], "report", &"x".repeat(10_000));
    assert_eq!(report(&locks).state(), LEAKED);
    del(&servers[2], "report");

    servers[0].kill()?;
    let without = seen(&locks, |it| it.nodes()[0].stored.is_err());
    assert_eq!(without.state(), LockState::Unknown, "{without:?}");
    // What is no lock's stays, whoever wants it gone.
    let rows = locks.admin().release(&without)?;
    assert!(
        rows.iter().all(|it| it.answer == NodeAnswer::NotAsked),
        "{rows:?}"
    );
    assert!(servers[1].exists("report"));
    Ok(())
}

#[test]
fn an_invalid_name_is_not_inspected() -> TestResult {
    let servers = Servers::start(1)?;
    let locks = manager(&servers);
    let error = |name: &str| locks.mutex(name).inspect().unwrap_err();
    assert_eq!(error("quorlock:record"), AcquireError::NameReserved);
    assert_matches!(error(&"x".repeat(70_000)), AcquireError::NameTooLong { .. });
    let seen = report(&locks);
    locks.shutdown();
    assert_eq!(error("report"), AcquireError::ShutDown);
    assert_matches!(locks.admin().release(&seen), Err(AcquireError::ShutDown));
    Ok(())
}

#[test]
fn a_lock_taken_from_its_holder_is_lost_to_it_and_goes_to_the_next() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = with_ttl(servers.urls(), secs(4)).build()?;
    let (other, operator) = (manager(&servers), manager(&servers));
    let guard = lock_in_the_end(&locks, "report");
    let number = guard.fencing_token();
    // A call that gets a node for itself is on no list there.
    seen(&operator, is_held);
    let call = thread::spawn(move || other.mutex("report").lock().map(|it| it.fencing_token()));
    let held = seen(&operator, |it| {
        is_held(it) && on_all(it, |it| it.waiting == 1)
    });

    assert_released(&operator.admin().release(&held)?);
    assert!(number < join(call)?, "the next one has a larger number");
    eventually("the old one has tried to extend", || !guard.is_valid());
    drop(guard);
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn readers_and_keys_without_expiry_are_released_by_operators_too() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, operator) = (manager(&servers), manager(&servers));
    let reader = locks.rw_lock("report").read()?;
    let read = seen(&operator, |it| {
        on_all(it, |it| matches!(&it.key, StoredKey::Read { count: 1, .. }))
    });
    operator.admin().release(&read)?;
    nothing_is_left(&servers);
    drop(operator.rw_lock("report").try_write()?);
    drop(reader);
    nothing_is_left(&servers);

    set_all(&servers, "report", "leaked");
    let leaked = report(&operator);
    assert_eq!(leaked.state(), LEAKED);
    let text = leaked.state().to_string();
    assert!(text.contains("without expiry"), "{text}");
    operator.admin().release(&leaked)?;
    drop(lock_in_the_end(&operator, "report"));
    Ok(())
}

#[test]
fn an_inspection_of_waiters_and_readers_needs_three_more_rights() -> TestResult {
    needs!(AccessLists);
    let servers = Servers::start(1)?;
    let server = &servers[0];
    let set_user = |lists: std::ops::Range<usize>| {
        server
            .command(&["ACL", "SETUSER", "locks", "reset"])
            .unwrap();
        lists.for_each(|list| drop(server.command(&access_list(list)).unwrap()));
        server.command(&["ACL", "SETUSER", "locks", "~*"]).unwrap();
    };
    set_user(0..2);
    let url = server.url().replacen("://", "://locks:pw@", 1);
    let eyes = connected(builder([url]), 1);
    let (locks, other) = (manager(&servers), manager(&servers));
    let reader = locks.rw_lock("report").read()?;
    let call = thread::spawn(move || other.mutex("report").lock().map(drop));
    eventually("it waits", || server.exists("quorlock:waiting:report"));

    let stored = report(&eyes).nodes()[0].stored.clone()?;
    assert_matches!(stored.key, StoredKey::Read { count: 0, readers } if readers.is_empty());
    assert_eq!(stored.waiting, 0);
    set_user(0..3);
    let stored = report(&eyes).nodes()[0].stored.clone()?;
    assert!(
        matches!(&stored.key, StoredKey::Read { count: 1, readers } if readers.len() == 1),
        "{stored:?}"
    );
    assert_eq!(stored.waiting, 1);

    drop(reader);
    join(call)?;
    Ok(())
}

#[test]
fn slots_of_a_semaphore_are_inspected_and_released_singly() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(builder(servers.urls()).owner_label("mailer"), 3);
    let operator = manager(&servers);
    let semaphore = operator.semaphore("mail", 3);
    let free = || {
        let slots = semaphore.inspect().unwrap();
        let is_free = |it: &&Inspection| it.state() == LockState::Free;
        slots.iter().filter(is_free).count()
    };
    assert_eq!(free(), 3);
    let permit = locks.semaphore("mail", 3).acquire()?;
    let has_it = |it: &Inspection| is_held(it) && it.slot() == Some(permit.slot());
    let mut slots = semaphore.inspect()?;
    eventually("all nodes have it", || {
        slots = semaphore.inspect().unwrap();
        slots.iter().any(has_it)
    });
    assert!(slots.iter().map(Inspection::slot).eq([0, 1, 2].map(Some)));
    let held = &slots[permit.slot()];
    assert!(format!("{held:?}").contains("/mailer"), "{held:?}");
    assert_eq!(held.name(), b"mail");
    let number = Some(permit.fencing_token().get());
    assert!(on_all(held, |it| it.counter == number), "{held:?}");
    assert_eq!(free(), 2);

    assert_released(&operator.admin().release(held)?);
    assert_eq!(free(), 3);
    drop(permit);
    let error = |name, permits| operator.semaphore(name, permits).inspect().unwrap_err();
    assert_matches!(error("mail", 0), AcquireError::BadPermits { .. });
    assert_eq!(error("quorlock:x", 2), AcquireError::NameReserved);
    Ok(())
}

#[test]
fn a_node_that_does_not_answer_is_waited_for_once_and_not_for_each_slot() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(impatient(servers.urls()), 3);
    // Behind it nothing of the first connections is to come.
    let _held = hold(&locks, &servers, "report");
    servers[1].pause()?;
    let sent = locks.stats().commands;
    let slots = locks.semaphore("mail", 20).inspect()?;
    // One to the node that was stopped, and twenty to each of the others.
    assert_eq!(locks.stats().commands - sent, 41);
    assert!(
        slots
            .iter()
            .all(|it| it.nodes()[1].stored.is_err() && it.state() == LockState::Free),
        "{slots:?}"
    );
    Ok(())
}
