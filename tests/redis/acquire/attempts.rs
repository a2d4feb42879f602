//! Attempts to take a lock: when they begin, how they end, and which nodes they leave out.

use std::time::Instant;

use devnodes::{Proxy, Server, Servers, eventually};
use quorlock::error::NodeAnswer;
use quorlock::{AcquireError, LockManager};
use rustix::process::Signal;

use crate::support::*;

/// A while, and what of a ttl of 20 s can be left after it at the most: less the margin of 1 % and 2 ms.
const WHILE: std::time::Duration = ms(500);
const LEFT: std::time::Duration = ms(20_000 - 202 - 500);

/// Begins an attempt, lets it be under way for a [`WHILE`], then calls `go_on`; how much is left of the lock it gets.
fn left_after_a_while(locks: &LockManager, go_on: impl FnOnce()) -> std::time::Duration {
    let attempt = attempt_under_way(locks);
    let since = Instant::now();
    eventually("a while has passed", || WHILE <= since.elapsed());
    go_on();
    join(attempt).unwrap().remaining()
}

#[test]
fn a1_a_lease_counts_from_before_the_first_request_leaves() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, |urls| builder(urls).ttl(secs(20)));

    type Act = fn(&Proxy);
    let holds: [(Act, Act); 2] = [
        (Proxy::hold_requests, Proxy::release_requests),
        (Proxy::hold_replies, Proxy::release_replies),
    ];
    for (hold, release) in holds {
        proxies.iter().for_each(hold);
        let left = left_after_a_while(&locks, || proxies.iter().for_each(release));
        assert!(left <= LEFT, "{left:?}");
        nothing_is_left(&servers);
    }
    Ok(())
}

#[test]
fn a1_every_attempt_of_a_waiting_call_counts_from_its_own_beginning() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| with_ttl(urls, secs(2)));
    servers
        .iter()
        .for_each(|it| set_px(it, "report", "foreign", 3_000));

    let began = Instant::now();
    let guard = locks.mutex("report").lock()?;

    // Counted from the beginning of the call, no attempt could be in time.
    assert!(secs(2) < began.elapsed());
    drop(guard);
    Ok(())
}

#[test]
fn a6_an_attempt_that_is_sent_twice_counts_from_its_first_sending() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, |urls| builder(urls).ttl(secs(20)));
    nothing_is_left(&servers);
    command_all(&servers, &["SCRIPT", "FLUSH"]);
    let before: Vec<_> = servers.iter().map(|server| calls(server, "eval")).collect();

    proxies.iter().for_each(Proxy::hold_replies);
    let left = left_after_a_while(&locks, || proxies.iter().for_each(Proxy::release_replies));

    let after = servers.iter().map(|server| calls(server, "eval"));
    let sent_again = after.zip(before).filter(|(after, before)| before < after);
    assert!(2 <= sent_again.count());
    assert!(left <= LEFT, "{left:?}");
    Ok(())
}

#[test]
fn a8_a_node_behind_a_won_round_is_extended_and_released_with_the_others() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, |urls| {
        builder(urls).ttl(secs(30)).response_timeout(secs(7))
    });
    let other = manager(&servers);

    proxies[2].hold_requests();
    let guard = locks.mutex("report").renew(false).try_lock()?;
    assert!(guard.is_valid() && !servers[2].exists("report"));
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
fn a9_a_majority_out_of_reach_ends_an_attempt_before_the_slowest_node_answers() -> TestResult {
    let servers = Servers::start(5)?;
    // So long that an attempt which waited for a paused node would never end here.
    let options = builder(servers.urls())
        .response_timeout(secs(60))
        .connect_timeout(secs(60))
        .ttl(LONG);
    let locks = connected(options.clone(), 5);
    let attempt = |locks: &LockManager| join(try_in_thread(locks)).unwrap_err();
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
    servers.iter().take(3).try_for_each(Server::kill)?;
    let fresh = options.build()?;
    let err = attempt(&fresh);
    assert_no_quorum(&err);
    assert_eq!(*answer(&err, 4), NodeAnswer::Pending, "{err}");
    servers[4].resume()?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn c3_a_process_stopped_in_its_attempt_wins_nothing_by_late_grants() -> TestResult {
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
    let is_granted = servers[0].exists(fence("report"));
    assert!(is_granted, "the node has granted it");
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
