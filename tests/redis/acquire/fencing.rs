//! Fencing tokens: larger with every holder, whatever the counters on the nodes say.

use std::thread;

use devnodes::{Servers, eventually};
use quorlock::AcquireError;
use quorlock::error::NodeAnswer;

use crate::support::*;

fn is_used(err: &AcquireError) -> bool {
    matches!(err, AcquireError::KeyInUse { .. })
}

#[test]
fn tokens_grow_over_every_change_of_the_majority() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    // As lost rounds and clocks leave them: all different, and far apart.
    let far = in_an_hour();
    for (i, counter) in [far + 7_000, far, 5].into_iter().enumerate() {
        set(&servers[i], &fence("report"), &counter.to_string());
    }

    let mut last = 0;
    for round in 0..9 {
        // Each node is missing in turn.
        servers[round % 3].pause()?;
        let guard = locks.mutex("report").lock()?;
        assert!(last < guard.fencing_token().get(), "{last} then {guard:?}");
        last = guard.fencing_token().get();
        servers[round % 3].resume()?;
        drop(guard);
        // With all it must grow as well.
        let guard = locks.mutex("report").lock()?;
        assert!(last < guard.fencing_token().get(), "{last} then {guard:?}");
        last = guard.fencing_token().get();
    }
    assert!(far < last);
    Ok(())
}

fn counter(server: &devnodes::Server) -> u64 {
    String::from_utf8(server.get(fence("report")).unwrap())
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn h1_a_release_brings_the_token_to_a_node_that_missed_the_raise() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, builder);
    drop(locks.mutex("report").try_lock()?);
    eventually("all have a counter", || {
        servers.iter().all(|it| it.exists(fence("report")))
    });
    nothing_is_left(&servers);
    set(&servers[1], &fence("report"), &in_an_hour().to_string());

    // The round cannot be decided yet; the last node executes the acquire, and its connection breaks.
    proxies[1].hold_replies();
    proxies[2].hold_replies();
    let lock = locks.mutex("report");
    let call = thread::spawn(move || lock.try_lock());
    eventually("the last node has granted it", || {
        servers[2].exists("report")
    });
    proxies[2].refuse(true);
    proxies[2].cut();
    eventually("it is down", || 2 <= locks.stats().connection_failures);
    proxies[1].release_replies();

    let guard = join(call)?;
    let token = guard.fencing_token().get();
    assert_eq!(locks.stats().fencing_raises, 1);
    assert!(counter(&servers[2]) < token);
    proxies[2].release_replies();
    proxies[2].refuse(false);
    guard.release()?;

    eventually("the last node knows the token", || {
        counter(&servers[2]) == token
    });
    assert_eq!([counter(&servers[0]), counter(&servers[1])], [token, token]);
    nothing_is_left(&servers);
    Ok(())
}

/// A release lifts a counter while the key is the owner's, and in no other case.
#[test]
fn h1_a_release_without_key_or_counter_raises_no_counter() -> TestResult {
    let (servers, locks) = start_connected(1, builder);
    let ahead = in_an_hour();
    for (key, found, left) in [
        ("", Some(7), Some(7)),
        ("somebody else", Some(7), Some(7)),
        ("mine", None, None),
        ("mine", Some(ahead + 9), Some(ahead + 9)),
    ] {
        set(&servers[0], &fence("report"), &ahead.to_string());
        let guard = locks.mutex("report").renew(false).try_lock()?;
        assert_eq!(guard.fencing_token().get(), ahead + 1);
        match key {
            "mine" => {}
            "" => del(&servers[0], "report"),
            other => set(&servers[0], "report", other),
        }
        match found {
            Some(counter) => set(&servers[0], &fence("report"), &counter.to_string()),
            None => del(&servers[0], &fence("report")),
        }

        drop(guard.release());

        eventually("it was executed", || {
            servers[0]
                .get("report")
                .as_deref()
                .is_none_or(|it| it == b"somebody else")
        });
        let counter = servers[0]
            .exists(fence("report"))
            .then(|| counter(&servers[0]));
        assert_eq!(counter, left, "{key:?}");
        if key == "somebody else" {
            del(&servers[0], "report");
        }
    }
    Ok(())
}

#[test]
fn invalid_counters_on_a_majority_are_a_key_in_use() -> TestResult {
    let (servers, locks) = start_connected(3, builder);

    for (i, value) in NO_COUNTERS.into_iter().enumerate() {
        let name = format!("report {i}");
        set(&servers[0], &fence(&name), value);
        set(&servers[2], &fence(&name), value);

        let err = locks.mutex(&name).try_lock().unwrap_err();
        assert!(is_used(&err), "{value:?}: {err:?}");
        for node in [0, 2] {
            assert!(
                says(failure(&err, node), "the fencing counter holds nonsense"),
                "{value:?}: {err}"
            );
        }
        let err = locks.mutex(&name).lock().unwrap_err();
        assert!(is_used(&err), "waiting would not help");
        let counter = servers[0].get(fence(&name)).unwrap();
        assert_eq!(counter, value.as_bytes(), "not ours to mend");
    }
    nothing_is_left(&servers);
    Ok(())
}

/// Numbers for a script, or for the server that turns them into a reply, and no counters all the same.
const NO_COUNTERS: [&str; 17] = [
    "",
    "\u{661}",
    "5\n",
    "1e3",
    "99999999999999999999",
    "1e300",
    "nan",
    "-5",
    "inf",
    "-inf",
    "7.5",
    "0x10",
    " 7",
    "1e15",
    "9007199254740992",
    "9999999999999999",
    "abc",
];

#[test]
fn a_lock_with_an_invalid_counter_still_counts_as_held() -> TestResult {
    let (servers, locks) = start_connected(1, builder);
    set(&servers[0], "report", "foreign");

    for counter in NO_COUNTERS {
        set(&servers[0], &fence("report"), counter);
        for _ in 0..2 {
            let err = locks.mutex("report").try_lock().unwrap_err();
            let is_held = matches!(answer(&err, 0), NodeAnswer::Held { .. });
            assert!(is_held, "{counter}: {err}");
        }
        // It waits, which is more than one round knows.
        let err = locks.mutex("report").try_lock_for(ms(300)).unwrap_err();
        assert!(err.is_held(), "{counter}: {err}");
    }

    Ok(())
}

#[test]
fn invalid_counters_on_a_minority_cost_no_lock() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (manager(&servers), manager(&servers));
    connect(&first, 3);
    set(&servers[1], &fence("report"), "abc");
    servers[1].command(&["HSET", &fence("other"), "field", "value"])?;

    for name in ["report", "other"] {
        let guard = first.mutex(name).try_lock()?;
        assert_held(&second.mutex(name).try_lock().unwrap_err());
        guard.extend(secs(20))?;
        guard.release()?;
    }
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a_counter_lives_for_a_day_after_its_last_use_or_for_ever() -> TestResult {
    const DAY: i64 = 24 * 60 * 60 * 1000;
    let servers = Servers::start(3)?;
    let by_default = connected(builder(servers.urls()), 3);
    let for_ever = builder(servers.urls()).fencing_ttl(None).build()?;
    let an_hour = builder(servers.urls())
        .fencing_ttl(Some(secs(3600)))
        .build()?;
    let lives = |name: &str| -> Vec<_> {
        let with_it = servers.iter().filter(|it| it.exists(fence(name)));
        with_it.map(|it| it.pttl(fence(name))).collect()
    };

    for (locks, name, expected) in [
        (&by_default, "a", DAY - 600_000..=DAY),
        (&for_ever, "b", -1..=-1),
        (&an_hour, "c", 3_000_000..=3_600_000),
    ] {
        drop(locks.mutex(name).try_lock()?);
        let lives = lives(name);
        assert!(2 <= lives.len(), "{name}: {lives:?}");
        let fit = lives.iter().all(|it| expected.contains(it));
        assert!(fit, "{name}: {lives:?}");
    }

    // A use renews it, and so does an extension.
    command_all(&servers, &["PEXPIRE", &fence("a"), "100000"]);
    let guard = by_default.mutex("a").try_lock()?;
    eventually("it is on all nodes", || servers.holders("a") == 3);
    let renewed = lives("a").into_iter().filter(|it| DAY - 600_000 < *it);
    assert!(2 <= renewed.count());
    command_all(&servers, &["PEXPIRE", &fence("a"), "100000"]);
    guard.extend(secs(20))?;
    let lives = lives("a");
    assert!(lives.iter().all(|it| 100_000 < *it), "{lives:?}");
    Ok(())
}
