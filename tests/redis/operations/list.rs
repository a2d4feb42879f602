//! Finding locks whose names nobody knows.

use std::thread;

use devnodes::{Proxy, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure, NodeReport};
use quorlock::inspection::{Inspection, Listing, LockState};
use quorlock::{AcquireError, LockManager};

use crate::support::*;

fn names(listing: &Listing) -> Vec<String> {
    let locks = listing.locks().iter();
    locks
        .map(|it| it.name().escape_ascii().to_string())
        .collect()
}

/// What is found, once it is on all nodes.
fn found(locks: &LockManager, pattern: &str, expected: &[&str]) -> Listing {
    let mut listing = locks.list(pattern).unwrap();
    eventually("all of them are found on all nodes", || {
        listing = locks.list(pattern).unwrap();
        let held = |it: &Inspection| {
            let mut nodes = it.nodes().iter();
            nodes.all(|it| it.stored.as_ref().is_ok_and(|it| it.left.is_some()))
        };
        names(&listing) == expected && listing.locks().iter().all(held)
    });
    listing
}

/// Whether the node forbids it.
fn is_refused(row: &NodeReport) -> bool {
    matches!(row.answer, NodeAnswer::Failed(NodeFailure::Access { .. }))
}

/// Keys of another program, in the same database.
fn populate(server: &Server, keys: u64) {
    let script = "for i = 1, ARGV[1] do redis.call('SET', 'foreign:' .. i, 'x') end";
    let mut client = server.client().unwrap();
    client.set_timeout(secs(120)).unwrap();
    let command = ["EVAL", script, "0", &keys.to_string()];
    client.command(&command).unwrap();
}

#[test]
fn a_listing_has_held_locks_of_every_kind_and_no_free_ones() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = manager(&servers);
    drop(locks.mutex("free").lock()?);
    let odd = ["order:{7}", "a}b", "", "{", "ü"].map(|it| locks.mutex(it).lock().unwrap());
    let reader = locks.rw_lock("catalog").read()?;
    let permit = locks.semaphore("mail", 3).acquire()?;
    let both = locks.multi_lock(["account:7", "account:9"]).lock()?;

    let expected: Vec<_> = ",account:7,account:9,a}b,catalog,mail,order:{7},{,\\xc3\\xbc"
        .split(',')
        .collect();
    let listing = found(&locks, "*", &expected);

    assert!(listing.is_complete(), "{listing:?}");
    assert!(listing.missed().is_empty(), "{listing:?}");
    let slots = listing.locks().iter().filter_map(Inspection::slot);
    assert!(slots.eq([permit.slot()]), "{listing:?}");
    let state = listing.locks()[4].state();
    assert_matches!(state, LockState::Read { readers: 1, .. });
    for (pattern, expected) in [
        ("account:*", &["account:7", "account:9"][..]),
        ("account:?", &["account:7", "account:9"]),
        ("mail", &["mail"]),
        ("no such", &[]),
    ] {
        assert_eq!(names(&locks.list(pattern)?), expected, "{pattern}");
    }
    drop((odd, reader, permit, both));
    Ok(())
}

#[test]
fn a_manager_with_a_prefix_finds_its_own_and_leaves_the_prefix_out() -> TestResult {
    let servers = Servers::start(1)?;
    let plain = manager(&servers);
    let with_prefix = builder(servers.urls()).prefix("app:").build()?;
    let guards = [&plain, &with_prefix].map(|it| it.mutex("report").lock().unwrap());
    assert_eq!(names(&with_prefix.list("*")?), ["report"]);
    let found = with_prefix.list("report")?;
    assert_matches!(found.locks()[0].state(), LockState::Held { .. });
    assert_eq!(names(&plain.list("*")?), ["app:report", "report"]);
    drop(guards);
    Ok(())
}

#[test]
fn a_listing_separates_keys_without_expiry_from_minority_keys() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(builder(servers.urls()), 3);
    for name in ["leaked", "minority"] {
        let guard = locks.mutex(name).lock()?;
        // Keys are found on a node that has counted the lock.
        eventually("it is on all nodes", || servers.holders(name) == 3);
        drop(guard);
    }
    nothing_is_left(&servers);
    set_all(&servers, "leaked", "x");
    set_px(&servers[1], "minority", "x", 600_000);

    let listing = locks.list("*")?;

    assert_eq!(names(&listing), ["leaked", "minority"]);
    let (holder, left) = (None, None);
    let leaked = LockState::Held { holder, left };
    assert_eq!(listing.locks()[0].state(), leaked);
    assert_eq!(listing.locks()[1].state(), LockState::Free);
    Ok(())
}

#[test]
fn a_listing_names_failed_nodes_and_uses_the_others() -> TestResult {
    needs!(AccessLists);
    needs!(ClosedPorts);
    let servers = Servers::start(3)?;
    let locks = manager(&servers);
    let _guard = locks.mutex("report").lock()?;
    found(&locks, "*", &["report"]);
    let restricted = add_user(&servers[2], "eyes", "~* &* +@all -scan");
    let eyes = connected(builder([servers[0].url(), servers[1].url(), restricted]), 3);
    servers[0].kill()?;
    eventually("it is known to be down", || {
        let failure = &eyes.check_nodes()[0].failure;
        matches!(failure, Some(NodeFailure::Connect { .. }))
    });

    let listing = eyes.list("*")?;

    assert_eq!(names(&listing), ["report"]);
    assert!(!listing.is_complete());
    let [down, forbids] = listing.missed() else {
        panic!("{listing:?}")
    };
    assert!(is_refused(forbids), "{forbids:?}");
    let is_connect = |it: &NodeFailure| matches!(it, NodeFailure::Connect { .. });
    assert_matches!(&down.answer, NodeAnswer::Failed(it) if is_connect(it));
    // What it forbids is to look for names, and not to look at one.
    let found = &listing.locks()[0];
    assert!(found.nodes()[2].stored.is_ok(), "{found:?}");
    Ok(())
}

#[test]
fn a_user_that_may_use_some_keys_finds_those_by_a_prefix_or_a_pattern() -> TestResult {
    needs!(AccessLists);
    let servers = Servers::start(1)?;
    let locks = manager(&servers);
    let _guards = ["app:report", "other:report"].map(|it| locks.mutex(it).lock().unwrap());
    let rules = "~quorlock:* ~app:* &* -@all +hello +auth +evalsha +eval +info +role \
                 +get +exists +pttl +time +zrange +scan";
    let url = add_user(&servers[0], "eyes", rules);

    let with_prefix = builder([&url]).prefix("app:").build()?.list("*")?;
    let with_pattern = builder([&url]).build()?.list("app:*")?;
    let with_neither = builder([&url]).build()?.list("*")?;

    assert_eq!(names(&with_prefix), ["report"]);
    assert_eq!(names(&with_pattern), ["app:report"]);
    assert!(with_prefix.is_complete() && with_pattern.is_complete());
    let [refused] = with_neither.missed() else {
        panic!("{with_neither:?}")
    };
    assert!(is_refused(refused), "{refused:?}");
    Ok(())
}

#[test]
fn nodes_are_listed_in_parallel() -> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let locks = connected(builder(urls).response_timeout(secs(60)).ttl(LONG), 3);
    let _guard = locks.mutex("report").lock()?;
    // A command behind one whose answer is held would wait for that answer.
    eventually("all have answered", || {
        locks.stats().nodes.iter().all(|it| it.unanswered == 0)
    });
    let asked = |server: &Server| calls(server, "scan");
    let before: Vec<_> = servers.iter().map(asked).collect();
    proxies.iter().for_each(Proxy::hold_replies);
    let search = locks.clone();
    let call = thread::spawn(move || search.list("*").map(|it| names(&it)));
    // None of them has been heard.
    eventually("all are asked", || {
        let mut all = servers.iter().zip(&before);
        all.all(|(it, before)| *before < asked(it))
    });
    proxies.iter().for_each(Proxy::release_replies);
    assert_eq!(join(call)?, ["report"]);
    Ok(())
}

#[test]
fn a_shutdown_ends_the_search() -> TestResult {
    let server = Server::start()?;
    populate(&server, 40_000);
    let proxy = Proxy::start(server.addr())?;
    // Eighty parts: it would take sixteen seconds.
    proxy.set_delay(ms(200));
    let locks = connected(builder([proxy.url()]), 1);
    let before = locks.stats().commands;
    let search = locks.clone();
    let call = thread::spawn(move || search.list("*").map(|it| it.locks().len()));
    eventually("it is at it", || before + 4 <= locks.stats().commands);
    locks.shutdown();
    assert_eq!(join(call), Err(AcquireError::ShutDown));
    assert_eq!(locks.list("*").unwrap_err(), AcquireError::ShutDown);
    Ok(())
}

#[test]
fn more_names_than_fit_into_an_answer_are_all_found() -> TestResult {
    let server = Server::start()?;
    let locks = builder([server.url()]).build()?;
    // As our scripts leave them.
    let script = "for i = 1, 2000 do redis.call('SET', 'quorlock:fence:' .. i, '1') redis.call('SET', i, 'x') end";
    server.command(&["EVAL", script, "0"])?;
    let long = "x".repeat(50_000);
    for i in 0..10 {
        set(&server, &fence(&format!("{i}{long}")), "1");
        set(&server, &format!("{i}{long}"), "x");
    }
    let listing = locks.list("*")?;
    assert!(listing.is_complete(), "{:?}", listing.missed());
    assert_eq!(listing.locks().len(), 2_010);
    Ok(())
}
