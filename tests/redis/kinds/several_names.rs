//! Several names at once: all of them or none, on every node, whoever else wants some of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use devnodes::{Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure, NodeReport};
use quorlock::{AcquireError, FencingToken, LockManager, Lost, MultiLock};
use rustix::process::Signal;

use crate::support::*;
use crate::waiting::lists::*;

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// How many of these keys the server has, seen at one moment.
pub(crate) fn count(server: &Server, names: &[&str]) -> i64 {
    server
        .command(&[&["EXISTS"], names].concat())
        .unwrap()
        .as_int()
        .unwrap()
}

/// Waits until the names are on all servers.
#[track_caller]
pub(crate) fn wait_until_everywhere(servers: &Servers, names: &[&str]) {
    eventually("all names are on all servers", || {
        are_everywhere(servers, names)
    });
}

fn are_everywhere(servers: &Servers, names: &[&str]) -> bool {
    names.iter().all(|it| servers.holders(it) == servers.len())
}

pub(crate) fn wait_for(lock: MultiLock) -> Waiter {
    thread::spawn(move || lock.lock())
}

/// Which name is in the way at that node.
fn name_in_the_way(err: &AcquireError, node: usize) -> Option<&str> {
    match answer(err, node) {
        NodeAnswer::Held { name, .. } => name.as_deref(),
        other => panic!("n{node} said {other:?}"),
    }
}

/// The error of a try that every node has refused.
#[track_caller]
fn refused(lock: &MultiLock) -> AcquireError {
    let mut err = None;
    eventually("every node refuses it", || {
        err = lock.try_lock().err();
        err.as_ref().is_some_and(|it: &AcquireError| {
            !it.nodes().is_empty()
                && it
                    .nodes()
                    .iter()
                    .all(|it| matches!(it.answer, NodeAnswer::Held { .. }))
        })
    });
    err.unwrap()
}

#[test]
fn all_names_have_one_value_and_one_token_and_are_given_back_together() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, far);
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
        let counters = NAMES.map(|it| server.get(fence(it)).unwrap());
        assert!(
            counters
                .iter()
                .all(|it| *it == guard.fencing_token().to_string().as_bytes()),
            "{counters:?}"
        );
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
    eventually("all are gone", || {
        servers.iter().all(|it| count(it, &NAMES) == 0)
    });
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_lock_of_one_name_is_the_mutex_of_that_name() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, far);

    let guard = locks.multi_lock(["a", "a"]).try_lock()?;

    assert_held(&locks.mutex("a").try_lock().unwrap_err());
    let earlier = guard.fencing_token();
    guard.release()?;
    servers.wait_until_free("a")?;
    assert!(earlier < locks.mutex("a").try_lock()?.fencing_token());
    Ok(())
}

#[test]
fn j1_each_name_excludes_whoever_takes_it_otherwise_and_the_rows_say_which_name_is_in_the_way()
-> TestResult {
    let servers = Servers::start(3)?;
    let (locks, other) = (on_all(&servers, far), on_all(&servers, far));
    let guard = locks.multi_lock(NAMES).lock()?;
    wait_until_everywhere(&servers, &NAMES);
    for name in NAMES {
        assert_held(&other.mutex(name).try_lock().unwrap_err());
        assert_held(&other.reentrant_mutex(name).try_lock().unwrap_err());
        let overlapping = other.multi_lock([name, "z"]);
        let err = refused(&overlapping);
        assert!(
            (0..3).all(|node| name_in_the_way(&err, node) == Some(name)),
            "{err}"
        );
        assert!(
            err.to_string().contains(&format!("{name} is held by")),
            "{err}"
        );
        assert_eq!(servers.holders("z"), 0, "all or none");
        // As a client of the plain layout.
        let taken = servers[0].command(&["SET", name, "foreign", "NX", "PX", "1000"])?;
        assert_eq!(taken.as_str(), None, "{name}");
    }
    guard.release()?;
    eventually("all are gone", || {
        servers.iter().all(|it| count(it, &NAMES) == 0)
    });

    for name in NAMES {
        servers
            .iter()
            .for_each(|it| set_px(it, name, "foreign", 60_000));
        let err = refused(&locks.multi_lock(NAMES));
        assert!(
            (0..3).all(|node| name_in_the_way(&err, node) == Some(name)),
            "{err}"
        );
        let others: Vec<_> = NAMES.into_iter().filter(|it| *it != name).collect();
        assert!(servers.iter().all(|it| count(it, &others) == 0));
        del_all(&servers, name);
    }
    drop(locks.multi_lock(NAMES).try_lock()?);
    Ok(())
}

#[test]
fn j1_a_reader_of_one_name_and_a_set_with_it_exclude_each_other_and_wait_for_each_other()
-> TestResult {
    let servers = Servers::start(3)?;
    let (readers, others) = (on_all(&servers, far), on_all(&servers, far));
    let read = readers.rw_lock("b").read()?;
    eventually("it reads on all servers", || servers.holders("b") == 3);

    let err = others.multi_lock(NAMES).try_lock().unwrap_err();
    assert_held(&err);
    let by_readers = |it: &NodeReport| match &it.answer {
        NodeAnswer::HeldByReaders { name, .. } => name.as_deref() == Some("b"),
        _ => false,
    };
    assert!(
        2 <= err.nodes().iter().filter(|it| by_readers(it)).count(),
        "{err}"
    );
    assert!(err.to_string().contains("b is held by readers, "), "{err}");
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
fn names_that_cannot_be_used_are_typed_errors_and_no_node_is_asked() -> TestResult {
    let servers = Servers::start(1)?;
    let locks = on_all(&servers, far);
    let before = locks.stats().commands;
    let none: [&str; 0] = [];

    assert_eq!(
        locks.multi_lock(none).lock().unwrap_err(),
        AcquireError::NoNames
    );
    let many = (0..65).map(|i| i.to_string());
    assert_eq!(
        locks.multi_lock(many).try_lock().unwrap_err(),
        AcquireError::TooManyNames { count: 65, max: 64 }
    );
    let long = ["x".repeat(40_000), "y".repeat(40_000)];
    let too_long = AcquireError::NameTooLong {
        len: 80_000,
        max: 65_536,
    };
    assert_eq!(
        locks.multi_lock(&long).try_lock_for(LONG).unwrap_err(),
        too_long
    );
    assert_eq!(
        locks
            .multi_lock(["a", "quorlock:x"])
            .try_lock()
            .unwrap_err(),
        AcquireError::NameReserved
    );
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
fn j4_a_key_of_another_type_under_any_name_is_told_with_the_name_and_nothing_is_taken() -> TestResult
{
    let servers = Servers::start(1)?;
    let locks = on_all(&servers, far);
    let failed = |err: &AcquireError, what| {
        assert!(matches!(err, AcquireError::KeyInUse { .. }), "{err:?}");
        assert_eq!(
            *failure(err, 0),
            NodeFailure::KeyInUse {
                name: Some("b".into()),
                what
            }
        );
        assert_eq!(count(&servers[0], &["a", "c"]), 0);
    };
    for key in ["b", &fence("b")] {
        servers[0].command(&["HSET", key, "f", "v"])?;
        failed(
            &locks.multi_lock(NAMES).try_lock().unwrap_err(),
            "the key holds another type",
        );
        del(&servers[0], key);
    }
    set(&servers[0], &fence("b"), "12x");
    let err = locks.multi_lock(NAMES).try_lock().unwrap_err();
    failed(&err, "the fencing counter holds nonsense");
    assert!(
        err.to_string()
            .contains("b: the fencing counter holds nonsense"),
        "{err}"
    );
    del(&servers[0], &fence("b"));

    // Those of the queue decide nothing about who holds it.
    for key in [list("b"), mark("b")] {
        servers[0].command(&["HSET", &key, "f", "v"])?;
        drop(locks.multi_lock(NAMES).try_lock()?);
        set(&servers[0], "b", "foreign");
        assert_held(&locks.multi_lock(NAMES).try_lock_for(ms(1)).unwrap_err());
        servers[0].command(&["DEL", "b", &key])?;
    }
    drop(locks.multi_lock(NAMES).try_lock()?);
    Ok(())
}

#[test]
fn a14_a_token_is_above_every_earlier_holders_of_each_name() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, far);
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
    servers
        .iter()
        .for_each(|it| set(it, &fence("b"), &ahead.to_string()));
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
fn a14_no_node_ever_has_some_of_the_names_also_where_a_holder_is_killed() -> TestResult {
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
                    "kinds::several_names::child_that_takes_all_again_and_again",
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

pub(crate) fn join_scoped<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[test]
#[ignore = "a process of another test"]
fn child_that_takes_all_again_and_again() {
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
fn j3_those_who_name_the_same_locks_in_opposite_orders_never_wait_for_each_other() -> TestResult {
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
fn d13_one_name_that_is_gone_at_a_majority_is_a_loss_and_the_others_are_released() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(builder(servers.urls()).ttl(secs(20)), 3);
    let guard = locks.multi_lock(NAMES).lock()?;
    wait_until_everywhere(&servers, &NAMES);

    del(&servers[0], "b");
    guard.extend(secs(20))?;
    eventually("a majority sets it again", || {
        servers.holders("b") == 3 && locks.stats().healed == 1
    });
    servers.iter().take(2).for_each(|it| del(it, "b"));
    assert!(guard.extend(secs(20)).is_err());

    assert_eq!(guard.check(), Err(Lost::Gone));
    drop(guard);
    eventually("nothing is left of the others", || {
        servers.iter().all(|it| count(it, &NAMES) == 0)
    });
    Ok(())
}

#[test]
fn d13_a_name_that_another_has_got_meanwhile_is_not_taken_back_nor_are_the_others_set_again_there()
-> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(builder(servers.urls()).ttl(secs(20)), 3);
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
    eventually("its own are gone", || {
        servers.iter().all(|it| count(it, &["a", "c"]) == 0)
    });
    Ok(())
}

/// The names of a manager that is asked while another one's are taken.
#[test]
fn a_prefix_is_in_front_of_each_name() -> TestResult {
    let servers = Servers::start(1)?;
    let locks: LockManager = builder(servers.urls()).prefix("app:").build()?;
    let guard = locks.multi_lock(["a", "b"]).try_lock()?;
    assert_eq!(count(&servers[0], &["app:a", "app:b"]), 2);
    guard.release()?;
    Ok(())
}
