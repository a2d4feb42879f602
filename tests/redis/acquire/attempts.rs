//! What a lock owes its users, where no other file is about it: attempts, names, connections, processes.

use std::thread;
use std::time::Instant;

use devnodes::{Proxy, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure};
use quorlock::{AcquireError, LockManager};
use rustix::process::Signal;

use crate::support::*;

/// A while, and what of a ttl of 20 s can be left after it at the most: less the margin of 1 % and 2 ms.
const WHILE: std::time::Duration = ms(500);
const LEFT: std::time::Duration = ms(20_000 - 202 - 500);

/// Begins an attempt, lets it be under way for a [`WHILE`], then calls `go_on`; how much is left of the lock it gets.
fn left_after_a_while(locks: &LockManager, go_on: impl FnOnce()) -> std::time::Duration {
    let commands = locks.stats().commands;
    let attempt = thread::spawn({
        let report = locks.mutex("report").renew(false);
        move || report.try_lock()
    });
    eventually("the attempt is under way", || {
        commands < locks.stats().commands
    });
    let since = Instant::now();
    eventually("a while has passed", || WHILE <= since.elapsed());
    go_on();
    join(attempt).unwrap().remaining()
}

#[test]
fn a1_a_lease_counts_from_before_the_first_request_leaves() -> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let locks = connected(builder(urls).ttl(secs(20)), 3);

    proxies.iter().for_each(Proxy::hold_requests);
    let left = left_after_a_while(&locks, || proxies.iter().for_each(Proxy::release_requests));
    assert!(left <= LEFT, "{left:?}");
    nothing_is_left(&servers);

    proxies.iter().for_each(Proxy::hold_replies);
    let left = left_after_a_while(&locks, || proxies.iter().for_each(Proxy::release_replies));
    assert!(left <= LEFT, "{left:?}");
    Ok(())
}

#[test]
fn a1_every_attempt_of_a_waiting_call_counts_from_its_own_beginning() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(with_ttl(servers.urls(), secs(2)), 3);
    for server in &servers {
        set_px(server, "report", "foreign", 3_000);
    }

    let began = Instant::now();
    let guard = locks.mutex("report").lock()?;

    // Counted from the beginning of the call, no attempt could be in time.
    assert!(secs(2) < began.elapsed());
    drop(guard);
    Ok(())
}

#[test]
fn a6_an_attempt_that_is_sent_twice_counts_from_its_first_sending() -> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let locks = connected(builder(urls).ttl(secs(20)), 3);
    nothing_is_left(&servers);
    for server in &servers {
        server.command(&["SCRIPT", "FLUSH"])?;
    }

    proxies.iter().for_each(Proxy::hold_replies);
    let left = left_after_a_while(&locks, || proxies.iter().for_each(Proxy::release_replies));

    let sent_again = servers
        .iter()
        .filter(|it| it.info("cmdstat_eval").is_some())
        .count();
    assert!(2 <= sent_again, "{sent_again}");
    assert!(left <= LEFT, "{left:?}");
    Ok(())
}

#[test]
fn a8_a_node_that_a_won_round_did_not_wait_for_is_extended_and_released_with_the_others()
-> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let locks = connected(builder(urls).ttl(secs(30)).response_timeout(secs(7)), 3);
    let other = manager(&servers);

    proxies[2].hold_requests();
    let guard = locks.mutex("report").renew(false).try_lock()?;
    assert_eq!(
        (guard.is_valid(), servers[2].exists("report")),
        (true, false)
    );
    proxies[2].release_requests();
    eventually("the straggler has granted as well", || {
        servers[2].exists("report")
    });

    assert_held(&other.mutex("report").try_lock().unwrap_err());
    guard.extend(LONG)?;
    eventually("it has extended as well", || {
        60_000 < servers[2].pttl("report")
    });
    guard.release()?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a9_a_majority_that_is_out_of_reach_ends_the_attempt_without_waiting_for_the_slowest()
-> TestResult {
    let servers = Servers::start(5)?;
    // So long that an attempt which waited for a paused node would never end here.
    let options = builder(servers.urls())
        .response_timeout(secs(60))
        .connect_timeout(secs(60))
        .ttl(LONG);
    let locks = connected(options.clone(), 5);
    let attempt = |locks: &LockManager| {
        let report = locks.mutex("report");
        join(thread::spawn(move || report.try_lock().map(drop))).unwrap_err()
    };
    for server in servers.iter().take(3) {
        set(server, "report", "foreign");
    }

    servers[3].pause()?;
    servers[4].pause()?;
    let err = attempt(&locks);
    assert_held(&err);
    assert_eq!(
        (answer(&err, 3), answer(&err, 4)),
        (&NodeAnswer::Pending, &NodeAnswer::Pending)
    );

    servers[3].resume()?;
    for server in servers.iter().take(3) {
        server.kill()?;
    }
    let fresh = options.build()?;
    let err = attempt(&fresh);
    assert_no_quorum(&err);
    assert_eq!(*answer(&err, 4), NodeAnswer::Pending, "{err}");
    servers[4].resume()?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn b7_clients_with_different_nodes_do_not_exclude_each_other() -> TestResult {
    // A hazard that is documented, and shown here.
    let servers = Servers::start(5)?;
    let urls = servers.urls();
    let (left, right) = (builder(&urls[..3]).build()?, builder(&urls[2..]).build()?);

    let first = left.mutex("report").lock()?;
    let second = right.mutex("report").lock()?;

    assert!(first.is_valid() && second.is_valid());
    Ok(())
}

#[test]
fn b7_programs_that_write_the_database_in_two_ways_exclude_each_other() -> TestResult {
    let servers = Servers::start(1)?;
    let with = |end: &str| builder([servers[0].url() + end]).build().unwrap();
    let guard = lock_in_the_end(&with("/3"), "report");
    assert_held(&with("?db=3").mutex("report").try_lock().unwrap_err());
    assert!(guard.is_valid());
    Ok(())
}

#[test]
fn b7_growing_from_three_to_five_nodes_while_locks_are_held_breaks_them() -> TestResult {
    needs!(ClosedPorts);
    let servers = Servers::start(5)?;
    servers[2].kill()?;
    let three = builder(&servers.urls()[..3]).build()?;
    let first = three.mutex("report").ttl(LONG).renew(false).lock()?;
    servers[2].restart()?;

    let five = manager(&servers);
    let second = lock_in_the_end(&five, "report");

    assert!(first.is_valid() && second.is_valid());
    Ok(())
}

/// Whoever uses a server first decides for all.
#[test]
fn h27_a_client_with_another_kind_of_quarantine_is_refused_and_those_before_it_go_on() -> TestResult
{
    for on_server in [true, false] {
        let servers = Servers::start(3)?;
        let first = builder(servers.urls()).quarantine(on_server).build()?;
        let _vouched = first.admin().vouch();
        let guard = lock_in_the_end(&first, "report");

        let second = builder(servers.urls())
            .quarantine(!on_server)
            .outage_timeout(secs(0))
            .build()?;
        let err = second.mutex("another").lock().unwrap_err();
        let differs = NodeFailure::QuarantineDiffers { on_server };
        let refused = err
            .nodes()
            .iter()
            .filter(|it| it.answer == NodeAnswer::Failed(differs.clone()))
            .count();
        assert!(2 <= refused, "{err}");
        assert!(
            servers
                .iter()
                .all(|it| !it.exists("another") && !it.exists(fence("another")))
        );

        guard.extend(secs(20))?;
        guard.release()?;
        // They were emptied, and another kind of program came first.
        let origin = if on_server { "off" } else { "old" };
        for server in servers.iter().take(2) {
            Record {
                origin: origin.to_owned(),
                ..Record::of_ever(server)
            }
            .write(server);
        }
        let differs = NodeAnswer::Failed(NodeFailure::QuarantineDiffers {
            on_server: !on_server,
        });
        let _err = error_in_the_end(&first, "report", |err| *answer(err, 0) == differs);
    }
    Ok(())
}

#[test]
fn b8_a_proxy_that_passes_connections_on_changes_nothing() -> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let (through, direct) = (
        builder(urls).ttl(LONG).build()?,
        builder(servers.urls()).ttl(LONG).build()?,
    );

    let guard = through.mutex("report").lock()?;
    assert_held(&direct.mutex("report").try_lock().unwrap_err());
    let waiter = thread::spawn({
        let report = direct.mutex("report");
        move || report.lock()
    });
    wait_for_refusals(&direct, 1);
    guard.release()?;
    let guard = join(waiter)?;
    assert_held(&through.mutex("report").try_lock().unwrap_err());
    let waiter = thread::spawn({
        let report = through.mutex("report");
        move || report.lock()
    });
    wait_for_refusals(&through, 1);
    guard.release()?;
    join(waiter)?.release()?;

    nothing_is_left(&servers);
    assert!(
        through
            .check_nodes()
            .iter()
            .all(quorlock::error::NodeCheck::is_fine)
    );
    // One each: everything goes over the same connection, in order.
    assert!(proxies.iter().all(|it| it.connections() == 1));
    Ok(())
}

#[test]
fn b9_a_kill_loses_no_lock_where_writes_go_to_the_file_at_once_and_proves_no_more() -> TestResult {
    needs!(DataOnDisk);
    for fsync in ["always", "no"] {
        let servers = Servers::start_with(3, |it| it.appendonly().arg("--appendfsync", fsync))?;
        let guard = builder(servers.urls())
            .ttl(LONG)
            .build()?
            .mutex("report")
            .lock()?;
        eventually("it is on all nodes", || servers.holders("report") == 3);

        for server in &servers {
            server.kill()?;
        }
        for server in &servers {
            server.restart()?;
        }

        assert_eq!(servers.holders("report"), 3, "{fsync}");
        assert_held(&manager(&servers).mutex("report").try_lock().unwrap_err());
        assert!(guard.is_valid());
    }
    Ok(())
}

#[test]
fn c3_a_process_stopped_in_the_middle_of_its_attempt_does_not_take_the_grants_for_a_lock()
-> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    // The round waits for a connection to this one.
    proxies[2].hold_replies();
    let mut child = child(
        "acquire::attempts::child_that_is_stopped_in_its_attempt",
        &urls,
    );
    assert_eq!(child.hear(), "is connected");
    proxies[0].hold_replies();
    proxies[1].hold_replies();
    child.tell("try");
    eventually("its attempt is under way", || {
        servers.holders("report") == 2
    });

    child.signal(Signal::STOP);
    let lease_is_over = Instant::now() + ms(510);
    eventually("its lease would be over", || lease_is_over < Instant::now());
    proxies.iter().for_each(Proxy::release_replies);
    child.signal(Signal::CONT);

    // The answer is a grant, and came in time for the attempt.
    assert_eq!(child.hear(), "too late");
    child.go_on();
    servers.wait_until_free("report")?;
    assert!(
        servers[0].exists(fence("report")),
        "the node has granted it"
    );
    assert!(child.wait().success());
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_is_stopped_in_its_attempt() {
    let Some(urls) = parent_urls() else { return };
    // The margin leaves about half of the ttl; a node that connects gives the attempt more time than that.
    let locks = with_ttl(urls, secs(1))
        .clock_margin(0.49, ms(0))
        .build()
        .unwrap();
    drop(lock_in_the_end(&locks, "warm-up"));
    say("is connected");
    wait_for_parent();
    match locks.mutex("report").try_lock() {
        Err(AcquireError::TooLate { .. }) => say("too late"),
        other => say(format_args!("{other:?}")),
    }
    wait_for_parent();
}

#[test]
#[cfg(target_os = "linux")]
fn d12_threads_that_cannot_be_started_are_an_error_of_the_builder_and_leave_none_behind() {
    let mut child = child(
        "acquire::attempts::child_without_room_for_threads",
        &["redis://a".to_owned()],
    );
    assert_eq!(child.hear(), "NoThreads, 0 threads more");
    assert!(child.wait().success());
}

#[test]
#[ignore = "a process of another test"]
#[cfg(target_os = "linux")]
fn child_without_room_for_threads() {
    use rustix::process::{Resource, Rlimit, setrlimit};

    let Some(_) = parent_urls() else { return };
    let number = |line: &str| {
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let status = |field: &str| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        number(status.lines().find(|it| it.starts_with(field)).unwrap())
    };
    let urls = (1..=31).map(|it| format!("redis://127.0.0.1:{it}"));
    let before = status("Threads:");
    // Room for the stacks of a few threads.
    let room = Some(status("VmSize:") * 1024 + 9 * 1024 * 1024);
    setrlimit(
        Resource::As,
        Rlimit {
            current: room,
            maximum: room,
        },
    )
    .unwrap();

    let err = builder(urls).build().unwrap_err();

    let [quorlock::error::BuildProblem::NoThreads { .. }] = err.problems() else {
        panic!("{err:?}")
    };
    eventually("those that were started have ended", || {
        status("Threads:") == before
    });
    say(format_args!(
        "NoThreads, {} threads more",
        status("Threads:") - before
    ));
}

#[test]
fn g3_the_addresses_of_one_name_are_one_node() -> TestResult {
    // Usually ::1 and 127.0.0.1, of which the servers have only the second.
    let servers = Servers::start(3)?;
    let urls: Vec<_> = servers
        .iter()
        .map(|it| it.url().replace("127.0.0.1", "localhost"))
        .collect();
    let locks = builder(&urls).build()?;

    let guard = lock_in_the_end(&locks, "report");
    eventually("each of them has granted it", || {
        servers.holders("report") == 3
    });
    guard.release()?;

    let checks = locks.check_nodes();
    assert!(
        checks.len() == 3 && checks.iter().all(quorlock::error::NodeCheck::is_fine),
        "{checks:?}"
    );
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn g3_a_name_that_cannot_be_resolved_costs_its_own_vote_and_no_time() -> TestResult {
    let servers = Servers::start(2)?;
    // That there is no such name is reserved; how long it takes to find out is the system's affair.
    let urls = [
        "redis://no-such-server.invalid".to_owned(),
        servers[0].url(),
        servers[1].url(),
    ];
    let options = builder(&urls)
        .response_timeout(secs(60))
        .connect_timeout(secs(60))
        .ttl(LONG)
        .shutdown_grace(ms(0));
    let locks = options.build()?;

    let worker = thread::spawn({
        let locks = locks.clone();
        move || {
            for i in 0..20 {
                locks
                    .mutex(format!("report {i}"))
                    .lock()
                    .unwrap()
                    .release()
                    .unwrap();
            }
        }
    });
    join(worker);

    nothing_is_left(&servers);
    servers[1].kill()?;
    let impatient = impatient(urls).shutdown_grace(ms(0)).build()?;
    let err = impatient.mutex("report").try_lock().unwrap_err();
    assert_no_quorum(&err);
    let row = failure(&err, 0);
    assert_matches!(row, NodeFailure::Connect { .. } | NodeFailure::TimedOut);
    Ok(())
}
