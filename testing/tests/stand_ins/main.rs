//! The shipped manager on stand-ins, and their faults.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use devnodes::{PATIENCE, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{AcquireError, Builder, LockManager};
use quorlock_testing::{Holder, Nodes, Refusal};

mod descriptors;
mod examples;

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(600);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Three nodes, and a manager of them.
fn three() -> Result<(Nodes, LockManager), Box<dyn std::error::Error>> {
    let nodes = Nodes::start(3);
    let locks = connected(patient(&nodes), 3);
    Ok((nodes, locks))
}

/// With time-outs that no busy machine misses.
fn patient(nodes: &Nodes) -> Builder {
    nodes
        .manager()
        .response_timeout(Duration::from_secs(10))
        .ttl(LONG)
}

/// A manager that is connected to all its nodes.
fn connected(builder: Builder, nodes: u64) -> LockManager {
    let locks = builder.outage_timeout(PATIENCE).build().unwrap();
    eventually("it is connected", || {
        locks.mutex("warm-up").try_lock().is_ok()
    });
    eventually("all nodes are connected", || {
        nodes <= locks.stats().connections
    });
    locks
}

fn failures(err: &AcquireError) -> Vec<&NodeFailure> {
    let failure = |it: &'_ NodeAnswer| matches!(it, NodeAnswer::Failed(_));
    let rows = err.nodes().iter().filter(|it| failure(&it.answer));
    rows.filter_map(|it| {
        if let NodeAnswer::Failed(failure) = &it.answer {
            Some(failure)
        } else {
            None
        }
    })
    .collect()
}

#[test]
fn a_hold_of_a_stand_in_blocks_callers_until_its_drop() -> TestResult {
    let (nodes, locks) = three()?;
    let other = nodes.hold("report");
    // RACE: of three nodes two make it held. Whoever tries now may come first to the third, and it is not on that one then.
    let is_all_its = |holder: Holder| holder.nodes == 3 && holder.label.ends_with("/stand-in");
    eventually("it is on all nodes", || {
        nodes.holder("report").is_some_and(is_all_its)
    });
    let err = locks.mutex("report").try_lock().unwrap_err();
    assert!(err.is_held(), "{err:?}");

    let report = locks.mutex("report");
    let waits = thread::spawn(move || report.try_lock_for(PATIENCE).map(drop));
    eventually("it waits", || locks.stats().waiting == 1);
    drop(other);

    waits.join().unwrap()?;
    eventually("it is free", || nodes.holder("report").is_none());
    Ok(())
}

#[test]
fn every_kind_of_lock_works_on_stand_ins() -> TestResult {
    let (nodes, locks) = three()?;
    let elsewhere = connected(patient(&nodes), 3);

    let guard = locks.mutex("a").try_lock()?;
    assert!(elsewhere.mutex("a").try_lock().unwrap_err().is_held());
    assert!(
        elsewhere
            .multi_lock(["a", "b"])
            .try_lock()
            .unwrap_err()
            .is_held()
    );
    guard.extend(LONG)?;
    guard.release()?;

    // These wait, because a release is over when a majority has it.
    let both = elsewhere.multi_lock(["a", "b"]).lock()?;
    assert!(locks.reentrant_mutex("b").try_lock().unwrap_err().is_held());
    both.release()?;

    let lock = locks.reentrant_mutex("b");
    let (outer, inner) = (lock.lock()?, lock.try_lock()?);
    drop((inner, outer));

    let (one, other) = (
        locks.rw_lock("book").try_read()?,
        elsewhere.rw_lock("book").try_read()?,
    );
    assert!(locks.rw_lock("book").try_write().is_err());
    one.release()?;
    other.release()?;
    let writer = locks.rw_lock("book").write()?;
    assert!(elsewhere.rw_lock("book").try_read().unwrap_err().is_held());
    writer.release()?;
    eventually("others can read", || {
        elsewhere.rw_lock("book").try_read().is_ok()
    });

    let permits = (
        locks.semaphore("mail", 2).try_acquire()?,
        elsewhere.semaphore("mail", 2).try_acquire()?,
    );
    assert!(
        locks
            .semaphore("mail", 2)
            .try_acquire()
            .unwrap_err()
            .is_held()
    );
    drop(permits);
    assert_eq!(
        (locks.stats().locks_lost, elsewhere.stats().locks_lost),
        (0, 0)
    );
    Ok(())
}

#[test]
fn stand_ins_can_hold_readers_and_permits() -> TestResult {
    let (nodes, locks) = three()?;
    let reader = nodes.hold_shared("book");
    locks.rw_lock("book").try_read()?.release()?;
    assert!(locks.rw_lock("book").try_write().is_err());
    drop(reader);
    locks.rw_lock("book").try_write()?.release()?;

    let permits = [nodes.hold_permit("mail", 2), nodes.hold_permit("mail", 2)];
    assert!(
        locks
            .semaphore("mail", 2)
            .try_acquire()
            .unwrap_err()
            .is_held()
    );
    drop(permits);
    locks.semaphore("mail", 2).try_acquire()?.release()?;
    Ok(())
}

#[test]
fn two_managers_hand_a_lock_to_each_other_without_polling() -> TestResult {
    let (nodes, locks) = three()?;
    let elsewhere = connected(patient(&nodes), 3);
    let guard = locks.mutex("report").try_lock()?;
    let report = elsewhere.mutex("report");
    let waits = thread::spawn(move || report.try_lock_for(PATIENCE).map(drop));
    eventually("it is in the lists", || {
        elsewhere.stats().waiting == 1 && elsewhere.stats().rounds_held != 0
    });
    guard.release()?;
    waits.join().unwrap()?;
    assert_ne!(elsewhere.stats().notices, 0);
    Ok(())
}

#[test]
fn one_node_that_is_down_does_not_matter_two_do_and_they_come_back() -> TestResult {
    let (nodes, locks) = three()?;
    nodes[0].down();
    locks.mutex("report").try_lock()?.release()?;
    nodes[1].down();
    let mut err = None;
    eventually("no majority is left", || {
        err = locks.mutex("report").try_lock().err();
        matches!(err, Some(AcquireError::NoQuorum { .. }))
    });
    nodes[0].up();
    eventually("it works again", || {
        locks.mutex("report").try_lock().is_ok()
    });
    Ok(())
}

#[test]
fn a_node_that_is_paused_or_slow_does_not_answer_in_time() -> TestResult {
    let nodes = Nodes::start(1);
    let locks = connected(nodes.manager().response_timeout(ms(100)), 1);
    let fails = || {
        matches!(
            locks.mutex("report").try_lock(),
            Err(AcquireError::NoQuorum { .. })
        )
    };
    nodes[0].pause();
    eventually("it does not answer", fails);
    nodes[0].resume();
    eventually("it answers", || locks.mutex("report").try_lock().is_ok());
    nodes[0].delay(ms(300));
    eventually("it is too slow", fails);
    nodes[0].delay(Duration::ZERO);
    eventually("it is not", || locks.mutex("report").try_lock().is_ok());
    Ok(())
}

#[test]
fn a_delay_is_part_of_every_answer() -> TestResult {
    let (nodes, locks) = three()?;
    nodes.iter().for_each(|it| it.delay(ms(20)));
    let began = Instant::now();
    let guard = locks.mutex("report").try_lock()?;
    assert!(ms(20) <= began.elapsed());
    guard.release()?;
    Ok(())
}

#[test]
fn refusals_of_stand_ins_are_read_as_server_errors() -> TestResult {
    let (nodes, locks) = three()?;
    type Looks = fn(&NodeFailure) -> bool;
    let expected: [(Refusal, Looks); 5] = [
        (Refusal::OutOfMemory, |it| {
            matches!(it, NodeFailure::WritesRefused { .. })
        }),
        (Refusal::Replica, |it| matches!(it, NodeFailure::Replica)),
        (Refusal::Loading, |it| matches!(it, NodeFailure::Loading)),
        (Refusal::Busy, |it| matches!(it, NodeFailure::Busy { .. })),
        (Refusal::NoPermission, |it| {
            matches!(it, NodeFailure::Access { .. })
        }),
    ];
    for (refusal, is_expected) in expected {
        nodes.iter().for_each(|it| it.refuse(refusal));
        eventually("all of them refuse it", || {
            let err = locks.mutex("report").try_lock().unwrap_err();
            1 < failures(&err)
                .into_iter()
                .filter(|it| is_expected(it))
                .count()
        });
        nodes.iter().for_each(|it| it.refuse(None));
        eventually("none does", || locks.mutex("report").try_lock().is_ok());
    }
    Ok(())
}

#[test]
fn acquires_with_lost_replies_are_released() -> TestResult {
    let (nodes, locks) = three()?;
    let before = nodes.commands();
    nodes.iter().for_each(|it| it.drop_replies(u64::MAX));
    assert!(locks.mutex("report").try_lock().is_err());
    assert!(before < nodes.commands());
    nodes.iter().for_each(|it| it.drop_replies(0));
    eventually("no key is left", || nodes.holder("report").is_none());
    eventually("they are connected again", || {
        locks.mutex("report").try_lock().is_ok()
    });
    Ok(())
}

#[test]
fn a_lock_that_is_lost_or_expires_ends_its_guard_at_the_next_extension() -> TestResult {
    let (nodes, locks) = three()?;
    for is_taken in [true, false] {
        let guard = locks.mutex("report").lock()?;
        let other = is_taken.then(|| nodes.lose("report"));
        nodes.expire(if is_taken { "another" } else { "report" });
        assert_eq!(other.is_some(), is_taken);

        assert!(guard.extend(LONG).is_err());

        guard.lost().recv_timeout(PATIENCE)?;
        assert!(guard.check().is_err());
        eventually("keys that the extension set are released", || {
            nodes.holder("report").is_some() == is_taken
        });
    }
    Ok(())
}

#[test]
fn expired_permits_end_their_guards_and_are_free_for_others() -> TestResult {
    let (nodes, locks) = three()?;
    let permits = [
        locks.semaphore("mail", 2).acquire()?,
        locks.semaphore("mail", 2).acquire()?,
    ];
    nodes.expire_permits("mail", 2);
    let _taken = [nodes.hold_permit("mail", 2), nodes.hold_permit("mail", 2)];
    for permit in permits {
        assert!(permit.extend(LONG).is_err());
        permit.lost().recv_timeout(PATIENCE)?;
    }
    Ok(())
}

/// Should the machine stop for longer than the ttl, it is lost by that.
#[test]
fn a_guard_finds_a_loss_without_calls() -> TestResult {
    let nodes = Nodes::start(3);
    let locks = connected(nodes.manager().ttl(ms(400)).response_timeout(ms(100)), 3);
    let guard = locks.mutex("report").lock()?;
    let _other = nodes.lose("report");
    guard.lost().recv_timeout(PATIENCE)?;
    Ok(())
}

/// Two at once are a loss if one extension finds both. If two find one each, the lock is whole again: nobody else had it,
/// or a counter above its token would be there.
#[test]
fn an_emptied_node_is_healed_and_two_at_once_are_healed_or_a_loss() -> TestResult {
    let (nodes, locks) = three()?;
    let guard = locks.mutex("report").lock()?;
    let is_healed =
        || guard.extend(LONG).is_ok() && nodes.holder("report").is_some_and(|it| it.nodes == 3);
    nodes[0].forget();
    eventually("it is set again", is_healed);
    nodes[0].forget();
    nodes[1].forget();
    eventually("it is lost or set again", || {
        is_healed() || guard.lost().try_recv().is_ok()
    });
    Ok(())
}

#[test]
fn fifty_sets_of_nodes_in_one_process_are_independent() -> TestResult {
    let sets: Vec<_> = std::iter::repeat_with(|| Nodes::start(1))
        .take(50)
        .collect();
    let holds: Vec<_> = sets.iter().map(|it| it.hold("report")).collect();
    drop(holds);
    assert!(sets.iter().all(|it| it.holder("report").is_none()));
    let locks = connected(patient(&sets[7]), 1);
    let guard = locks.mutex("report").try_lock()?;
    assert_eq!(
        sets.iter()
            .filter(|it| it.holder("report").is_some())
            .count(),
        1
    );
    guard.release()?;
    Ok(())
}

#[test]
fn with_quarantine_stand_ins_are_new_until_vouched_for() -> TestResult {
    let nodes = Nodes::start(3);
    let locks = patient(&nodes).quarantine(true).max_ttl(LONG).build()?;
    let quarantined = |err: AcquireError| {
        failures(&err)
            .iter()
            .any(|it| matches!(it, NodeFailure::Quarantined { .. }))
    };
    eventually("they have no vote", || {
        locks.mutex("report").try_lock().is_err_and(quarantined)
    });
    eventually("all of them are vouched for", || {
        locks.admin().vouch().iter().all(|it| it.failure.is_none())
    });
    eventually("they have", || locks.mutex("report").try_lock().is_ok());
    Ok(())
}

#[test]
fn foreign_commands_are_answered_and_malformed_ones_disconnect() -> TestResult {
    let nodes = Nodes::start(1);
    let url = nodes[0].url();
    let addr = url.strip_prefix("redis://").unwrap();
    let said = |bytes: &[u8], until: &str| -> std::io::Result<String> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(bytes)?;
        let (mut answer, mut byte) = (String::new(), [0]);
        while (until.is_empty() || !answer.contains(until)) && stream.read(&mut byte)? != 0 {
            answer.push(char::from(byte[0]));
        }
        Ok(answer)
    };
    let unknown = said(b"*3\r\n$7\r\nEVALSHA\r\n$1\r\nx\r\n$1\r\n0\r\n", "\n")?;
    assert!(unknown.starts_with("-NOSCRIPT "), "{unknown}");
    let any = said(b"*3\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n", "\n")?;
    assert_eq!(any, ":1\r\n");
    let other = said(b"*1\r\n$8\r\nSHUTDOWN\r\n", "\n")?;
    assert!(
        other.contains("SHUTDOWN") && other.contains("stand-in"),
        "{other}"
    );
    for nonsense in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"*1\r\n:1\r\n",
        b"*99999999999\r\n",
        &[b'*'; 100],
    ] {
        assert_eq!(
            said(nonsense, "").unwrap_or_default(),
            "",
            "{}",
            nonsense.escape_ascii()
        );
    }
    // Keys or arguments that are missing.
    for count in ["2", "9", "x", "-1", "18446744073709551616"] {
        let bytes = format!(
            "*4\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n${}\r\n{count}\r\n$1\r\nk\r\n",
            count.len()
        );
        let answer = said(bytes.as_bytes(), "\n")?;
        let expected = [
            "-ERR Number of keys can't be ",
            "-ERR value is not an integer or out of range",
        ];
        assert!(
            expected.iter().any(|it| answer.starts_with(it)),
            "{count}: {answer}"
        );
    }
    let locks = connected(patient(&nodes), 1);
    locks.mutex("report").try_lock()?.release()?;
    Ok(())
}

/// A test as users write it, of nine lines.
#[test]
fn a_caller_that_waits_gets_the_lock_when_its_holder_releases_it() {
    let nodes = Nodes::start(3);
    let locks = nodes.manager().build().unwrap();
    let other = nodes.hold("report");
    thread::scope(|scope| {
        let waits = scope.spawn(|| locks.mutex("report").lock().map(drop));
        nodes.wait_until_waiting(1);
        drop(other);
        assert!(waits.join().unwrap().is_ok());
    });
    nodes.wait_until_free("report");
}

#[test]
fn callers_are_counted_over_names_and_kinds_of_locks() -> TestResult {
    let (nodes, locks) = three()?;
    let elsewhere = connected(patient(&nodes), 3);
    assert!(nodes.is_free("report"));
    let holds = (
        nodes.hold("report"),
        nodes.hold("book"),
        nodes.hold_permit("mail", 1),
    );
    assert!(!nodes.is_free("report"));
    thread::scope(|scope| {
        for locks in [&locks, &elsewhere] {
            scope.spawn(|| {
                locks
                    .mutex("report")
                    .try_lock_for(PATIENCE)
                    .map(drop)
                    .unwrap()
            });
            // Threads of one manager are one caller.
            scope.spawn(|| {
                locks
                    .mutex("report")
                    .try_lock_for(PATIENCE)
                    .map(drop)
                    .unwrap()
            });
        }
        nodes.wait_until_waiting(2);
        for _ in 0..2 {
            scope.spawn(|| {
                locks
                    .rw_lock("book")
                    .try_read_for(PATIENCE)
                    .map(drop)
                    .unwrap()
            });
        }
        nodes.wait_until_waiting(4);
        scope.spawn(|| {
            locks
                .semaphore("mail", 1)
                .try_acquire_for(PATIENCE)
                .map(drop)
                .unwrap()
        });
        nodes.wait_until_waiting(5);
        drop(holds);
    });
    nodes.wait_until_free("report");
    assert!(nodes.is_free("report"));
    Ok(())
}

#[test]
fn an_impossible_hold_panics_with_a_sentence() {
    let nodes = Nodes::start(3);
    let _holds = (nodes.hold("report"), nodes.hold_permit("mail", 1));
    let panics: [(&dyn Fn(), &str); 3] = [
        (&|| drop(nodes.hold("report")), "report"),
        (&|| drop(nodes.hold_shared("report")), "report"),
        (&|| drop(nodes.hold_permit("mail", 1)), "mail"),
    ];
    for (call, name) in panics {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .unwrap_or_default();
        let expected = format!("a hold is impossible: \"{name}\": held by ");
        assert!(text.starts_with(&expected), "{text}");
    }
}

#[test]
fn a_stolen_lock_goes_to_the_thief_before_waiting_calls() -> TestResult {
    let (nodes, locks) = three()?;
    let elsewhere = connected(patient(&nodes), 3);
    let guard = locks.mutex("report").try_lock()?;
    thread::scope(|scope| {
        let waits = scope.spawn(|| elsewhere.mutex("report").try_lock_for(PATIENCE).map(drop));
        nodes.wait_until_waiting(1);
        let thief = nodes.lose("report");
        assert!(guard.extend(LONG).is_err());
        let is_all_its =
            |holder: Holder| holder.nodes == 3 && holder.label.starts_with("stand-in/");
        eventually("it is on all nodes", || {
            nodes.holder("report").is_some_and(is_all_its)
        });
        drop(thief);
        waits.join().unwrap()
    })?;
    Ok(())
}

#[test]
fn a_lock_stolen_and_released_stays_with_its_new_holder() -> TestResult {
    let (nodes, locks) = three()?;
    let thief = nodes.lose("report");
    nodes.expire("report");
    let guard = locks.mutex("report").try_lock()?;
    drop(thief);
    guard.extend(LONG)?;
    Ok(())
}

#[test]
fn holds_of_stand_ins_ignore_faults() -> TestResult {
    let nodes = Nodes::start(3);
    nodes.iter().for_each(|node| node.down());
    nodes[1].pause();
    nodes[2].refuse(Refusal::Busy);
    let other = nodes.hold("report");
    nodes.iter().for_each(|node| node.drop_replies(u64::MAX));
    eventually("it is on all nodes", || {
        nodes.holder("report").is_some_and(|it| it.nodes == 3)
    });
    drop(other);
    nodes.wait_until_free("report");
    assert_eq!(nodes.commands(), 0);
    Ok(())
}

/// For people: `cargo test -p quorlock-testing --test stand_ins -- --ignored --nocapture --exact costs_of_a_test_with_stand_ins`.
#[test]
#[ignore = "prints times"]
fn costs_of_a_test_with_stand_ins() -> TestResult {
    let mut times: [Vec<Duration>; 3] = Default::default();
    for _ in 0..20 {
        let begin = Instant::now();
        let nodes = Nodes::start(3);
        times[0].push(begin.elapsed());
        let locks = nodes.manager().build()?;
        locks.mutex("report").lock()?.release()?;
        times[1].push(begin.elapsed());

        // A whole test of a lost lock: servers, manager, lock, theft, and the failed extension; all end with it.
        let begin = Instant::now();
        {
            let nodes = Nodes::start(3);
            let locks = nodes.manager().build()?;
            let guard = locks.mutex("report").lock()?;
            let _thief = nodes.lose("report");
            assert!(guard.extend(Duration::from_secs(10)).is_err());
            guard.lost().recv_timeout(PATIENCE)?;
        }
        times[2].push(begin.elapsed());
    }
    for (what, mut times) in [
        "three stand-ins",
        "with a manager, and a lock",
        "a test of a lost lock",
    ]
    .iter()
    .zip(times)
    {
        times.sort();
        println!(
            "{what}: median {:?}, longest {:?}",
            times[times.len() / 2],
            times[times.len() - 1]
        );
    }
    Ok(())
}
