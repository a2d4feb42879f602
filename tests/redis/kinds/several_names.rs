//! Several names at once: all of them or none, on every node, whoever else wants some of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use devnodes::{PATIENCE, Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure, NodeReport};
use quorlock::{AcquireError, FencingToken, LostReason, MultiLock};
use rustix::process::Signal;

use crate::support::*;
use crate::waiting::lists::*;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// How many of these keys the server has, seen at one moment.
fn count(server: &Server, names: &[&str]) -> i64 {
    server
        .command(&[&["EXISTS"], names].concat())
        .unwrap()
        .as_int()
        .unwrap()
}

/// Waits until the names are on all servers.
#[track_caller]
fn wait_until_everywhere(servers: &Servers, names: &[&str]) {
    eventually("all names are on all servers", || {
        are_everywhere(servers, names)
    });
}

fn are_everywhere(servers: &Servers, names: &[&str]) -> bool {
    names.iter().all(|it| servers.holders(it) == servers.len())
}

fn wait_for(lock: MultiLock) -> Waiter {
    thread::spawn(move || lock.lock())
}

/// Waits until the names are on no server.
#[track_caller]
fn wait_until_nowhere(servers: &Servers, names: &[&str]) {
    eventually("all names are gone", || {
        servers.iter().all(|it| count(it, names) == 0)
    });
}

/// Asserts that each node was asked, and that this name is held there.
#[track_caller]
fn assert_is_held_everywhere(err: &AcquireError, name: &str) {
    let is_held = |it: &NodeReport| matches!(&it.answer, NodeAnswer::Held { name: Some(held), .. } if **held == *name);
    assert!(err.nodes().iter().all(is_held), "{err}");
    assert_eq!(err.nodes().len(), 3);
}

/// The error of a try that every node has refused.
#[track_caller]
fn refused(lock: &MultiLock) -> AcquireError {
    let is_held = |it: &NodeReport| matches!(it.answer, NodeAnswer::Held { .. });
    let by_all = |it: &AcquireError| !it.nodes().is_empty() && it.nodes().iter().all(is_held);
    eventually_some("every node refuses it", || {
        lock.try_lock().err().filter(by_all)
    })
}

#[test]
fn all_names_of_a_set_share_value_token_and_release() -> TestResult {
    let (servers, locks) = start_on_all(3, far);
    let several = locks.multi_lock(["c", "a", "b", "a"]);
    assert_eq!(
        several.names().collect::<Vec<_>>(),
        NAMES.map(str::as_bytes),
        "sorted, and each once"
    );

    let guard = several.lock()?;

    wait_until_everywhere(&servers, &NAMES);
    for server in &servers {
        let values = NAMES.map(|it| server.get(it).unwrap());
        assert!(values.iter().all(|it| *it == values[0]), "{values:?}");
        let token = guard.fencing_token().to_string().into_bytes();
        let counters = NAMES.map(|it| server.get(fence(it)).unwrap());
        assert_eq!(counters, [(); 3].map(|()| token.clone()));
    }
    guard.extend(LONG * 2)?;
    eventually("all are extended", || {
        servers.iter().all(|server| {
            NAMES
                .iter()
                .all(|it| i64::try_from(LONG.as_millis()).unwrap() < server.pttl(it))
        })
    });
    assert_eq!(guard.release()?.nodes, 3);
    wait_until_nowhere(&servers, &NAMES);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_lock_of_one_name_is_the_mutex_of_that_name() -> TestResult {
    let (servers, locks) = start_on_all(3, far);

    let guard = locks.multi_lock(["a", "a"]).try_lock()?;

    assert_held(&locks.mutex("a").try_lock().unwrap_err());
    let earlier = guard.fencing_token();
    guard.release()?;
    servers.wait_until_free("a")?;
    assert!(earlier < locks.mutex("a").try_lock()?.fencing_token());
    Ok(())
}

#[test]
fn j1_each_name_of_a_set_excludes_others_and_the_rows_have_the_held_name() -> TestResult {
    let (servers, locks) = start_on_all(3, far);
    let other = on_all(&servers, far);
    let guard = locks.multi_lock(NAMES).lock()?;
    wait_until_everywhere(&servers, &NAMES);
    for name in NAMES {
        assert_held(&other.mutex(name).try_lock().unwrap_err());
        assert_held(&other.reentrant_mutex(name).try_lock().unwrap_err());
        let overlapping = other.multi_lock([name, "z"]);
        let err = refused(&overlapping);
        assert_is_held_everywhere(&err, name);
        assert_contains(&err, &format!("{name} is held by"));
        assert_eq!(servers.holders("z"), 0, "all or none");
        // As a client of the plain layout.
        let taken = servers[0].command(&["SET", name, "foreign", "NX", "PX", "1000"])?;
        assert_eq!(taken.as_str(), None, "{name}");
    }
    guard.release()?;
    wait_until_nowhere(&servers, &NAMES);

    for name in NAMES {
        set_all(&servers, name, "foreign");
        assert_is_held_everywhere(&refused(&locks.multi_lock(NAMES)), name);
        let others: Vec<_> = NAMES.into_iter().filter(|it| *it != name).collect();
        assert!(servers.iter().all(|it| count(it, &others) == 0));
        del_all(&servers, name);
    }
    drop(locks.multi_lock(NAMES).try_lock()?);
    Ok(())
}

#[test]
fn j1_a_reader_and_a_set_with_its_name_exclude_and_wait_for_each_other() -> TestResult {
    let servers = Servers::start(3)?;
    let (readers, others) = (on_all(&servers, far), on_all(&servers, far));
    let read = readers.rw_lock("b").read()?;
    eventually("it reads on all servers", || servers.holders("b") == 3);

    let err = others.multi_lock(NAMES).try_lock().unwrap_err();
    assert_held(&err);
    let by_readers = |it: &&NodeReport| match &it.answer {
        NodeAnswer::HeldByReaders { name, .. } => name.as_deref() == Some("b"),
        _ => false,
    };
    let refusals = err.nodes().iter().filter(by_readers).count();
    assert!(2 <= refusals, "{err}");
    assert_contains(&err, "b is held by readers, ");
    let waiting = wait_for(others.multi_lock(NAMES));
    wait_until_listed(&servers, "b", 1);
    assert!(servers.iter().all(|it| count(it, &["a", "c"]) == 0));
    read.release()?;

    let guard = join(waiting)?;
    // A node that the release of the reader reaches late has refused: an extension takes the names there as well, once it is
    // there.
    eventually("all names are on all servers", || {
        guard.extend(LONG).unwrap();
        are_everywhere(&servers, &NAMES)
    });
    assert_held(&readers.rw_lock("b").try_read().unwrap_err());
    let lock = readers.rw_lock("b");
    let reading = thread::spawn(move || lock.read().map(drop));
    wait_until_listed(&servers, "b", 1);
    guard.release()?;
    join(reading)?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn invalid_sets_of_names_are_errors_before_any_command() -> TestResult {
    let (servers, locks) = start_on_all(1, far);
    let before = locks.stats().commands;
    let none: [&str; 0] = [];

    let many = (0..65).map(|i| i.to_string());
    let long = ["x".repeat(40_000), "y".repeat(40_000)];
    let (len, max) = (80_000, 65_536);
    let reserved = ["a", "quorlock:x"];
    for (lock, expected) in [
        (locks.multi_lock(none), AcquireError::NoNames),
        (
            locks.multi_lock(many),
            AcquireError::TooManyNames { count: 65, max: 64 },
        ),
        (
            locks.multi_lock(&long),
            AcquireError::NameTooLong { len, max },
        ),
        (locks.multi_lock(reserved), AcquireError::NameReserved),
    ] {
        assert_eq!(lock.try_lock().unwrap_err(), expected);
        assert_eq!(lock.try_lock_for(LONG).unwrap_err(), expected);
        assert_eq!(lock.lock().unwrap_err(), expected);
    }
    assert_matches!(
        locks.multi_lock(["a"]).ttl(ms(1)).try_lock(),
        Err(AcquireError::BadTtl(_))
    );
    assert_eq!(locks.stats().commands, before);

    // As many and as long as is allowed, and any bytes.
    let mut names: Vec<Vec<u8>> = (0..63_u8).map(|i| vec![i; 1_000]).collect();
    names.push(b"{}\r\n\xff".to_vec());
    let guard = locks.multi_lock(&names).try_lock()?;
    assert!(names.iter().all(|it| servers[0].exists(it)));
    guard.extend(LONG)?;
    guard.release()?;
    assert!(!names.iter().any(|it| servers[0].exists(it)));
    Ok(())
}

#[test]
fn j4_a_foreign_key_of_a_set_is_reported_with_its_name_and_no_name_is_taken() -> TestResult {
    let (servers, locks) = start_on_all(1, far);
    for (key, command, what) in [
        ("b", &["HSET", "f", "v"][..], "the key holds another type"),
        (
            &fence("b"),
            &["HSET", "f", "v"],
            "the key holds another type",
        ),
        (
            &fence("b"),
            &["SET", "12x"],
            "the fencing counter holds nonsense",
        ),
    ] {
        servers[0].command(&[&[command[0], key], &command[1..]].concat())?;
        let err = locks.multi_lock(NAMES).try_lock().unwrap_err();
        let name = Some("b".into());
        assert_eq!(*failure(&err, 0), NodeFailure::KeyInUse { name, what });
        assert_contains(&err, &format!("b: {what}"));
        assert_eq!(count(&servers[0], &["a", "c"]), 0);
        del(&servers[0], key);
    }
    Ok(())
}

#[test]
fn a14_a_token_is_above_every_earlier_holders_of_each_name() -> TestResult {
    let (servers, locks) = start_on_all(3, far);
    let mut earlier: BTreeMap<&str, FencingToken> = BTreeMap::new();
    let mut take = |names: &[&'static str]| {
        let guard = match names {
            [one] => lock_in_the_end(&locks, one),
            _ => locks.multi_lock(names).lock().unwrap(),
        };
        for name in names {
            let before = earlier.insert(name, guard.fencing_token());
            assert!(
                before.is_none_or(|it| it < guard.fencing_token()),
                "{names:?}"
            );
        }
        guard.release().unwrap();
    };
    // The counters of the names are at different places, and one of them is far ahead of all clocks.
    let ahead = in_an_hour();
    set_all(&servers, &fence("b"), &ahead.to_string());
    for names in [
        &["a"][..],
        &["a", "b"],
        &["a"],
        &["c"],
        &["b"],
        &NAMES,
        &["c"],
        &["b", "c"],
        &["a"],
    ] {
        take(names);
    }
    assert!(
        earlier.values().all(|it| ahead < it.get()),
        "a name that was taken with another goes on from its counter"
    );
    assert!(2 <= locks.stats().fencing_raises);
    Ok(())
}

/// How many of the names a server has. Before Redis 7.2 each key that a script sets lives from its own moment on, so those of a
/// killed holder expire one after the other: what is left of them in their last moments does not count. Nor does one name that was
/// handed over to a call for all of them: for a second at most, until that call asks for the others.
fn count_live(server: &Server, names: &[&str]) -> i64 {
    let script = "local n, longest = 0, 0 \
        for _, key in ipairs(KEYS) do \
            local left = redis.call('PTTL', key) \
            if left ~= -2 then n, longest = n + 1, math.max(longest, left) end \
        end \
        if n < #KEYS and longest <= 50 or n == 1 and longest <= 1000 then return 0 end \
        return n";
    let len = names.len().to_string();
    server
        .command(&[&["EVAL", script, &len], names].concat())
        .unwrap()
        .as_int()
        .unwrap()
}

#[test]
fn a14_no_node_has_some_of_the_names_even_after_a_kill() -> TestResult {
    let servers = Servers::start(3)?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching: Vec<_> = servers
            .iter()
            .map(|server| {
                let done = &done;
                scope.spawn(move || {
                    let mut seen = BTreeMap::new();
                    while !done.load(Ordering::SeqCst) {
                        *seen.entry(count_live(server, &NAMES)).or_insert(0_u64) += 1;
                    }
                    seen
                })
            })
            .collect();
        for after in [0, 3, 10, 30, 60] {
            let mut children = repeat(2, || {
                child(
                    "kinds::several_names::child_that_locks_all_names_in_a_loop",
                    &servers.urls(),
                )
            });
            assert!(children.iter_mut().all(|it| it.hear() == "held"));
            thread::sleep(ms(after));
            for child in &mut children {
                child.signal(Signal::KILL);
                assert!(!child.wait().success());
            }
        }
        done.store(true, Ordering::SeqCst);
        for seen in watching {
            let seen = join_scoped(seen);
            assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [0, 3], "{seen:?}");
        }
    });
    // What the killed ones held comes back.
    drop(manager(&servers).multi_lock(NAMES).lock()?);
    Ok(())
}

fn join_scoped<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[test]
#[ignore = "a process of another test"]
fn child_that_locks_all_names_in_a_loop() {
    let Some(urls) = parent_urls() else { return };
    let locks = with_ttl(&urls, secs(1)).build().unwrap();
    let mut first = true;
    loop {
        let guard = locks.multi_lock(NAMES).lock().unwrap();
        if std::mem::take(&mut first) {
            say("held");
        }
        drop(guard);
    }
}

#[test]
fn j3_sets_of_names_in_opposite_orders_never_deadlock() -> TestResult {
    const ROUNDS: u64 = 8;
    let servers = Servers::start(3)?;
    let inside: BTreeMap<_, _> = NAMES
        .into_iter()
        .map(|it| (it, AtomicU64::new(0)))
        .collect();
    let orders = [
        ["a", "b"],
        ["b", "a"],
        ["b", "c"],
        ["c", "b"],
        ["a", "c"],
        ["c", "a"],
        ["a", "b"],
        ["c", "b"],
    ];
    thread::scope(|scope| {
        let clients: Vec<_> = orders
            .into_iter()
            .map(|names| {
                let (servers, inside) = (&servers, &inside);
                scope.spawn(move || {
                    let locks = builder(servers.urls()).build().unwrap();
                    for _ in 0..ROUNDS {
                        let guard = locks.multi_lock(names).lock().unwrap();
                        for name in names {
                            assert_eq!(
                                inside[name].fetch_add(1, Ordering::SeqCst),
                                0,
                                "{name} has two holders"
                            );
                        }
                        guard.check().unwrap();
                        for name in names {
                            inside[name].fetch_sub(1, Ordering::SeqCst);
                        }
                        guard.release().unwrap();
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(join_scoped);
    });
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn d13_the_loss_of_one_name_at_a_majority_releases_the_others() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(secs(20)));
    let guard = locks.multi_lock(NAMES).lock()?;
    wait_until_everywhere(&servers, &NAMES);

    del(&servers[0], "b");
    guard.extend(secs(20))?;
    eventually("a majority sets it again", || {
        servers.holders("b") == 3 && locks.stats().healed == 1
    });
    servers.iter().take(2).for_each(|it| del(it, "b"));
    // An extension of the renewal thread may be between the two answers that show the loss.
    let _ = guard.extend(secs(20));

    eventually("the loss is found", || !guard.is_valid());
    assert_eq!(reason(guard.check()), Err(LostReason::Gone));
    drop(guard);
    wait_until_nowhere(&servers, &NAMES);
    Ok(())
}

#[test]
fn d13_no_name_is_set_again_where_another_holds_one() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(secs(20)));
    let guard = locks.multi_lock(NAMES).lock()?;
    wait_until_everywhere(&servers, &NAMES);

    servers[0].command(&["DEL", "a", "b"])?;
    set(&servers[0], "b", "foreign");
    for _ in 0..5 {
        guard.extend(secs(20))?;
    }

    assert_eq!(servers[0].get("b").as_deref(), Some(&b"foreign"[..]));
    assert!(!servers[0].exists("a") && servers[0].exists("c"));
    // Whatever it is that stands there.
    del(&servers[0], "b");
    servers[0].command(&["HSET", "b", "f", "v"])?;
    for _ in 0..5 {
        guard.extend(secs(20))?;
    }
    assert!(!servers[0].exists("a") && servers[0].exists("c"));
    assert_eq!(locks.stats().healed, 0);
    guard.release()?;
    wait_until_nowhere(&servers, &["a", "c"]);
    Ok(())
}

#[test]
fn a_call_for_several_names_waits_in_the_list_of_its_refused_name() -> TestResult {
    let (servers, [holder, waiter]) = with_managers(far);
    let held = NAMES.map(|it| hold(&holder, &servers, it));

    let waiting = wait_for(waiter.multi_lock(NAMES));
    // One after another is in its way.
    for (name, guard) in NAMES.into_iter().zip(held) {
        wait_until_listed(&servers, name, 1);
        for other in NAMES.into_iter().filter(|it| *it != name) {
            assert_eq!(servers.holders(list(other)), 0, "in one list");
        }
        assert!(!waiting.is_finished());
        guard.release()?;
    }

    // Nothing but notices can have told it.
    let guard = join(waiting)?;
    assert!(guard.is_valid());
    guard.release()?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn j3_no_name_is_idle_while_a_call_for_several_waits_for_another() -> TestResult {
    let (servers, [holder, waiter]) = with_managers(far);
    let others = repeat(3, || on_all(&servers, far));
    let (a, c) = (hold(&holder, &servers, "a"), hold(&holder, &servers, "c"));
    let several = wait_for(waiter.multi_lock(["a", "b", "c"]));
    wait_until_listed(&servers, "a", 1);

    // Free, and nobody's.
    for _ in 0..5 {
        others[0].mutex("b").try_lock()?.release()?;
        servers.wait_until_free("b")?;
    }
    // It stands before them in the list of a name, is told that this one is free, and finds another in its way.
    let order = Order::default();
    let singles: Vec<_> = others
        .iter()
        .enumerate()
        .map(|(i, it)| {
            let single = order.queue(it, it.mutex("a"), &i.to_string());
            wait_until_listed(&servers, "a", i + 2);
            single
        })
        .collect();
    a.release()?;
    singles.into_iter().for_each(join);
    assert_eq!(order.names(), ["0", "1", "2"], "one after the other");

    assert!(!several.is_finished());
    wait_until_listed(&servers, "c", 1);
    c.release()?;
    join(several)?.release()?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_stream_of_single_holders_lets_a_call_for_both_names_in() -> TestResult {
    let servers = Servers::start(3)?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let singles: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|name| {
                let (servers, done) = (&servers, &done);
                scope.spawn(move || {
                    let locks = builder(servers.urls()).build().unwrap();
                    while !done.load(Ordering::SeqCst) {
                        drop(locks.mutex(name).lock().unwrap());
                    }
                })
            })
            .collect();
        let locks = builder(servers.urls()).build().unwrap();
        let began = Instant::now();
        let got = locks
            .multi_lock(["a", "b"])
            .try_lock_for(PATIENCE)
            .map(drop);
        done.store(true, Ordering::SeqCst);
        singles.into_iter().for_each(join_scoped);
        assert!(got.is_ok(), "{got:?} after {:?}", began.elapsed());
    });
    nothing_waits(&servers);
    Ok(())
}
