//! Finding locks whose names nobody knows.

use std::thread;
use std::time::{Duration, Instant};

use devnodes::{Proxy, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::inspection::{Inspection, Listing, LockState};
use quorlock::{AcquireError, LockManager};

use crate::support::*;

fn names(listing: &Listing) -> Vec<String> {
    listing
        .locks()
        .iter()
        .map(|it| it.name().escape_ascii().to_string())
        .collect()
}

/// What is found, once it is on all nodes.
fn found(locks: &LockManager, pattern: &str, expected: &[&str]) -> Listing {
    let mut listing = locks.list(pattern).unwrap();
    eventually("all of them are found on all nodes", || {
        listing = locks.list(pattern).unwrap();
        let held = |it: &Inspection| {
            it.nodes()
                .iter()
                .all(|it| it.stored.as_ref().is_ok_and(|it| it.left.is_some()))
        };
        names(&listing) == expected && listing.locks().iter().all(held)
    });
    listing
}

/// Keys of another program, in the same database.
fn populate(server: &Server, keys: u64) {
    let script = "for i = 1, ARGV[1] do redis.call('SET', 'foreign:' .. i, 'x') end";
    let mut client = server.client().unwrap();
    client.set_timeout(secs(120)).unwrap();
    client
        .command(&["EVAL", script, "0", &keys.to_string()])
        .unwrap();
}

#[test]
fn what_somebody_holds_is_found_by_whatever_means_and_what_is_free_is_not() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = manager(&servers);
    drop(locks.mutex("free").lock()?);
    let odd = ["order:{7}", "a}b", "", "{", "ü"].map(|it| locks.mutex(it).lock().unwrap());
    let reader = locks.rw_lock("catalog").read()?;
    let permit = locks.semaphore("mail", 3).acquire()?;
    let both = locks.multi_lock(["account:7", "account:9"]).lock()?;

    let expected = [
        "",
        "account:7",
        "account:9",
        "a}b",
        "catalog",
        "mail",
        "order:{7}",
        "{",
        "\\xc3\\xbc",
    ];
    let listing = found(&locks, "*", &expected);

    assert!(
        listing.is_complete() && listing.missed().is_empty(),
        "{listing:?}"
    );
    let slots: Vec<_> = listing
        .locks()
        .iter()
        .filter_map(Inspection::slot)
        .collect();
    assert_eq!(slots, [permit.slot()]);
    assert!(
        matches!(
            listing.locks()[4].state(),
            LockState::Read { readers: 1, .. }
        ),
        "{}",
        listing.locks()[4]
    );
    assert_eq!(names(&locks.list("account:*")?), ["account:7", "account:9"]);
    assert_eq!(names(&locks.list("account:?")?), ["account:7", "account:9"]);
    assert_eq!(names(&locks.list("mail")?), ["mail"]);
    assert_eq!(names(&locks.list("no such")?), Vec::<String>::new());
    drop((odd, reader, permit, both));
    Ok(())
}

#[test]
fn a_manager_with_a_prefix_finds_its_own_and_leaves_the_prefix_out() -> TestResult {
    let servers = Servers::start(1)?;
    let (plain, with_prefix) = (
        manager(&servers),
        builder(servers.urls()).prefix("app:").build()?,
    );
    let guards = [
        plain.mutex("report").lock()?,
        with_prefix.mutex("report").lock()?,
    ];
    assert_eq!(names(&with_prefix.list("*")?), ["report"]);
    assert_matches!(
        with_prefix.list("report")?.locks()[0].state(),
        LockState::Held { .. }
    );
    assert_eq!(names(&plain.list("*")?), ["app:report", "report"]);
    drop(guards);
    Ok(())
}

#[test]
fn keys_without_expiry_and_keys_on_a_minority_are_found_and_told_apart() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(builder(servers.urls()), 3);
    for name in ["leaked", "minority"] {
        let guard = locks.mutex(name).lock()?;
        // Keys are found on a node that has counted the lock.
        eventually("it is on all nodes", || servers.holders(name) == 3);
        drop(guard);
    }
    nothing_is_left(&servers);
    servers.iter().for_each(|it| set(it, "leaked", "x"));
    set_px(&servers[1], "minority", "x", 600_000);

    let listing = locks.list("*")?;

    assert_eq!(names(&listing), ["leaked", "minority"]);
    assert_eq!(
        listing.locks()[0].state(),
        LockState::Held {
            holder: None,
            left: None
        }
    );
    assert_eq!(listing.locks()[1].state(), LockState::Free);
    Ok(())
}

#[test]
fn a_node_that_is_down_or_forbids_it_is_named_and_the_others_suffice() -> TestResult {
    needs!(AccessLists);
    needs!(ClosedPorts);
    let servers = Servers::start(3)?;
    let locks = manager(&servers);
    let _guard = locks.mutex("report").lock()?;
    found(&locks, "*", &["report"]);
    servers[2].command(&[
        "ACL", "SETUSER", "eyes", "on", ">secret", "~*", "&*", "+@all", "-scan",
    ])?;
    let restricted = servers[2].url().replacen("://", "://eyes:secret@", 1);
    let eyes = connected(builder([servers[0].url(), servers[1].url(), restricted]), 3);
    servers[0].kill()?;
    let is_down = || {
        matches!(
            eyes.check_nodes()[0].failure,
            Some(NodeFailure::Connect { .. })
        )
    };
    eventually("it is known to be down", is_down);

    let listing = eyes.list("*")?;

    assert_eq!(names(&listing), ["report"]);
    assert!(!listing.is_complete());
    let [down, forbids] = listing.missed() else {
        panic!("{listing:?}")
    };
    assert_matches!(
        &down.answer,
        NodeAnswer::Failed(NodeFailure::Connect { .. })
    );
    assert_matches!(
        &forbids.answer,
        NodeAnswer::Failed(NodeFailure::Access { .. })
    );
    // What it forbids is to look for names, and not to look at one.
    assert!(
        listing.locks()[0].nodes()[2].stored.is_ok(),
        "{}",
        listing.locks()[0]
    );
    Ok(())
}

#[test]
fn a_user_that_may_use_some_keys_finds_those_by_a_prefix_or_a_pattern() -> TestResult {
    needs!(AccessLists);
    let servers = Servers::start(1)?;
    let locks = manager(&servers);
    let _guards = (
        locks.mutex("app:report").lock()?,
        locks.mutex("other:report").lock()?,
    );
    let user = "on >secret ~quorlock:* ~app:* &* -@all +hello +auth +script|exists +script|load +evalsha +eval +info +role \
                +get +exists +pttl +time +zrange +scan";
    let words: Vec<_> = ["ACL", "SETUSER", "eyes"]
        .into_iter()
        .chain(user.split_whitespace())
        .collect();
    servers[0].command(&words)?;
    let url = servers[0].url().replacen("://", "://eyes:secret@", 1);

    let with_prefix = builder([&url]).prefix("app:").build()?.list("*")?;
    let with_pattern = builder([&url]).build()?.list("app:*")?;
    let with_neither = builder([&url]).build()?.list("*")?;

    assert_eq!(
        (names(&with_prefix), names(&with_pattern)),
        (vec!["report".to_owned()], vec!["app:report".to_owned()])
    );
    assert!(with_prefix.is_complete() && with_pattern.is_complete());
    let [refused] = with_neither.missed() else {
        panic!("{with_neither:?}")
    };
    assert_matches!(
        &refused.answer,
        NodeAnswer::Failed(NodeFailure::Access { .. })
    );
    Ok(())
}

#[test]
fn nodes_are_looked_through_side_by_side() -> TestResult {
    let servers = Servers::start(3)?;
    let proxies = servers
        .iter()
        .map(|it| Proxy::start(it.addr()))
        .collect::<Result<Vec<_>, _>>()?;
    let locks = connected(
        builder(proxies.iter().map(Proxy::url))
            .response_timeout(secs(60))
            .ttl(secs(600)),
        3,
    );
    let _guard = locks.mutex("report").lock()?;
    let asked = |server: &Server| calls(server, "scan");
    let before: Vec<_> = servers.iter().map(asked).collect();
    proxies.iter().for_each(Proxy::hold_replies);
    let search = locks.clone();
    let call = thread::spawn(move || search.list("*").map(|it| names(&it)));
    // None of them has been heard.
    eventually("all are asked", || {
        servers
            .iter()
            .zip(&before)
            .all(|(it, before)| *before < asked(it))
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
    assert!(matches!(join(call), Err(AcquireError::ShutDown)));
    assert!(matches!(locks.list("*"), Err(AcquireError::ShutDown)));
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
        server.command(&["SET", &fence(&format!("{i}{long}")), "1"])?;
        server.command(&["SET", &format!("{i}{long}"), "x"])?;
    }
    let listing = locks.list("*")?;
    assert!(listing.is_complete(), "{:?}", listing.missed());
    assert_eq!(listing.locks().len(), 2_010);
    Ok(())
}

/// The server works for us for a fifth of the time.
#[test]
fn a_search_among_many_keys_of_others_is_no_burden_to_the_server() -> TestResult {
    needs!(Settings);
    let keys = if long_tests() { 1_000_000 } else { 50_000 };
    let server = Server::start()?;
    populate(&server, keys);
    let locks = connected(builder([server.url()]), 1);
    let _guard = locks.mutex("report").lock()?;
    server.command(&["CONFIG", "RESETSTAT"])?;
    let began = Instant::now();

    let listing = locks.list("*")?;

    let took = began.elapsed();
    assert_eq!(
        (names(&listing), listing.is_complete()),
        (vec!["report".to_owned()], true)
    );
    let stat = |what: &str| -> u64 {
        let line = server.info("cmdstat_evalsha").unwrap_or_default();
        line.split([',', ':'])
            .find_map(|it| it.strip_prefix(what))
            .map_or(0, |it| it.parse().unwrap())
    };
    let (parts, worked) = (stat("calls="), Duration::from_micros(stat("usec=")));
    assert!(keys / 1_000 <= parts, "it has looked at {parts} parts");
    // The server's count goes on while others have its processor.
    assert!(worked * 3 <= took, "{worked:?} of {took:?}");
    Ok(())
}
