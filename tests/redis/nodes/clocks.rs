//! Wall clocks that are stepped: those of nodes, and those of clients. On Linux only, where devnodes can do it.

use std::time::Duration;

use devnodes::{Clock, Server, Servers, eventually};
use quorlock::error::{NodeFailure, NodeFinding};
use quorlock::{Builder, ExtendError, LockGuard, LockManager, LostReason};

use crate::kinds::each_kind::KINDS;
use crate::operations::log_lines::{self, QUARANTINE};
use crate::support::*;

const HOUR: Duration = secs(3_600);

/// Servers with clocks of their own.
fn servers(n: usize) -> Servers {
    Servers::start_with(n, |it| it.stepped_clock()).unwrap()
}

/// As if the servers had been running for half an hour: their clocks are ahead, which makes for as much uptime. And an
/// operator has vouched for them, as the guide says.
fn age(servers: &Servers) {
    for server in servers {
        server.step_clock_forward(HOUR / 2).unwrap();
        set(server, RECORD, "0");
    }
}

fn strict(servers: &Servers) -> Builder {
    builder(servers.urls()).quarantine(true).max_ttl(QUARANTINE)
}

fn is_quarantined(failure: Option<&NodeFailure>) -> bool {
    matches!(failure, Some(NodeFailure::Quarantined { left, .. }) if secs(1) < *left && *left < secs(620))
}

fn quarantined(locks: &LockManager) -> Vec<usize> {
    let checks = locks.check_nodes();
    checks
        .iter()
        .filter(|it| is_quarantined(it.failure.as_ref()))
        .map(|it| it.node.index())
        .collect()
}

#[test]
fn c4_a_forward_clock_step_quarantines_its_node() -> TestResult {
    needs!(SteppedClocks);
    let servers = servers(3);
    age(&servers);
    let locks = connected(strict(&servers), 3);
    assert_eq!(quarantined(&locks), [0; 0]);

    servers[0].step_clock_forward(secs(40))?;
    // The others are enough.
    drop(locks.mutex("report").try_lock()?);
    eventually("it is seen", || locks.stats().clock_steps == 1);
    assert_eq!(quarantined(&locks), [0], "{:?}", locks.check_nodes());

    servers[1].step_clock_forward(secs(40))?;
    let err = locks.mutex("report").try_lock().unwrap_err();

    assert_no_quorum(&err);
    assert!(
        is_quarantined(Some(failure(&err, 0))) && is_quarantined(Some(failure(&err, 1))),
        "{err}"
    );
    assert_eq!(quarantined(&locks), [0, 1]);
    let quarantined: Vec<_> = locks
        .stats()
        .quarantined
        .iter()
        .map(|(node, _)| node.index())
        .collect();
    assert_eq!((quarantined, locks.stats().clock_steps), (vec![0, 1], 2));
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn c4_a_step_back_costs_no_vote() -> TestResult {
    needs!(SteppedClocks);
    let servers = servers(3);
    age(&servers);
    let locks = connected(strict(&servers), 3);

    servers
        .iter()
        .try_for_each(|it| it.step_clock_back(secs(600)))?;

    assert_eq!(quarantined(&locks), [0; 0]);
    drop(locks.mutex("report").try_lock()?);
    Ok(())
}

#[test]
fn c4_without_quarantine_a_step_forward_is_counted_and_costs_no_vote() -> TestResult {
    needs!(SteppedClocks);
    let servers = servers(3);
    let locks = connected(builder(servers.urls()), 3);

    servers
        .iter()
        .try_for_each(|it| it.step_clock_forward(secs(40)))?;

    drop(locks.mutex("report").try_lock()?);
    eventually("all are seen", || locks.stats().clock_steps == 3);
    drop(locks.mutex("report").try_lock()?);
    for it in locks.check_nodes() {
        assert_eq!(it.failure, None);
        let [NodeFinding::ClockDiffers { by, ahead: true }] = it.findings[..] else {
            panic!("{it}")
        };
        assert!(secs(30) < by && by < secs(41), "{by:?}");
    }
    Ok(())
}

#[test]
fn c4_a_hold_that_expired_early_is_healed_on_a_minority_and_lost_on_a_majority() -> TestResult {
    needs!(SteppedClocks);
    let servers = servers(3);
    let locks = connected(builder(servers.urls()).ttl(LONG).renew(false), 3);
    let holds = KINDS.map(|it| (it, it.take(&locks, &servers)));

    servers[0].step_clock_forward(2 * LONG)?;
    // RACE: all of them first: the first extension shows the step, and others may be healed by that.
    assert!(holds.iter().all(|(kind, _)| !kind.is_on(&servers[0])));
    for (kind, hold) in &holds {
        hold.extend(LONG)?;
        eventually("it is set there again", || kind.is_on(&servers[0]));
    }

    // RACE: an extension that the first step has brought on could heal a lock between these two. Neither server runs
    // anything before both clocks are stepped.
    let both = [&servers[1], &servers[2]];
    both.iter().try_for_each(|it| it.pause())?;
    both.iter()
        .try_for_each(|it| it.step_clock_forward(2 * LONG))?;
    for it in both {
        it.resume()?;
        // Until it shows its new time.
        it.step_clock_forward(Duration::ZERO)?;
    }
    for (kind, hold) in &holds {
        let err = hold.extend(LONG).unwrap_err();
        assert_eq!(err.reason(), Some(LostReason::Gone), "{kind:?}");
        assert_eq!(reason(hold.check()), Err(LostReason::Gone));
    }
    Ok(())
}

/// Renewals are far away, and a call that waits for a node that is stopped does not wait for long.
fn long(servers: &Servers) -> Builder {
    builder(servers.urls())
        .ttl(secs(600))
        .response_timeout(secs(1))
}

fn start_long() -> (Servers, LockManager) {
    let servers = servers(3);
    let locks = connected(long(&servers), 3);
    (servers, locks)
}

/// How long its key lasts there.
fn left_at(server: &Server) -> Duration {
    Duration::from_millis(u64::try_from(server.pttl("report")).unwrap_or(0))
}

/// A lock of ten minutes on the first two of three servers; the third was stopped, and nothing rests on it.
fn hold_on_two(servers: &Servers, locks: &LockManager, renew: bool) -> LockGuard {
    servers[2].pause().unwrap();
    let guard = locks.mutex("report").renew(renew).lock().unwrap();
    assert!(servers[0].exists("report") && servers[1].exists("report"));
    guard
}

#[test]
fn c4_an_observed_step_ends_a_lock_lost_by_a_majority_at_once() -> TestResult {
    needs!(SteppedClocks);
    let (servers, locks) = start_long();
    for renew in [true, false] {
        let guard = locks.mutex("report").renew(renew).lock()?;
        eventually("it is on all nodes", || servers.holders("report") == 3);
        let lost = guard.lost();

        servers[0].step_clock_forward(secs(700))?;
        servers[1].step_clock_forward(secs(700))?;
        assert!(guard.is_valid(), "nobody has seen it");
        let _seen = locks.check_nodes();

        // Its next renewal would be in more than three minutes.
        assert_eq!(announced(&lost), LostReason::Gone, "renewed: {renew}");
        assert_eq!(reason(guard.check()), Err(LostReason::Gone));
    }
    Ok(())
}

#[test]
fn c4_a_majority_that_needs_a_stepped_clock_loses_its_lock() -> TestResult {
    needs!(SteppedClocks);
    let servers = servers(3);
    for renew in [true, false] {
        let locks = connected(long(&servers), 3);
        let guard = hold_on_two(&servers, &locks, renew);
        let lost = guard.lost();

        servers[0].step_clock_forward(secs(700))?;
        let _seen = locks.check_nodes();

        assert_eq!(announced(&lost), LostReason::NodeClock, "renewed: {renew}");
        assert_eq!(reason(guard.check()), Err(LostReason::NodeClock));
        servers[2].resume()?;
        drop(guard);
        // The manager lives on: its shutdown would wait for a late node for a response timeout only.
        nothing_is_left(&servers);
    }
    Ok(())
}

/// There is no doubt about the lock, so it does no harm that nobody answers.
fn no_answer_does_no_harm(servers: &Servers, guard: &LockGuard, look: impl FnOnce()) {
    servers.iter().for_each(|it| it.pause().unwrap());
    let err = guard.extend(secs(600)).unwrap_err();
    assert!(matches!(err, ExtendError::NoQuorum { .. }), "{err:?}");
    assert!(guard.is_valid() && guard.lost().try_recv().is_err());
    // Before late answers confirm the extension.
    look();
    servers.iter().for_each(|it| it.resume().unwrap());
}

#[test]
fn c4_a_lock_on_enough_other_nodes_survives_a_stepped_clock() -> TestResult {
    needs!(SteppedClocks);
    for is_extended in [false, true] {
        let (servers, locks) = start_long();
        let guard = if is_extended {
            let guard = locks.mutex("report").renew(false).lock()?;
            eventually("it is on all nodes", || servers.holders("report") == 3);
            servers[2].pause()?;
            guard.extend(secs(600))?;
            guard
        } else {
            hold_on_two(&servers, &locks, false)
        };
        // The third grants or extends it when that has been decided already. Its next answer comes behind that.
        servers[2].resume()?;
        eventually("the third answers", || {
            locks.check_nodes()[2].failure.is_none()
        });
        assert!(servers[2].exists("report"), "extended: {is_extended}");

        // The key of the first has expired by this step, and nothing rests on it.
        servers[0].step_clock_forward(secs(700))?;
        let _seen = locks.check_nodes();
        eventually("it is seen", || locks.stats().clock_steps == 1);
        no_answer_does_no_harm(&servers, &guard, || {
            let extensions = locks.stats().extensions;
            assert_eq!(extensions, u64::from(is_extended), "it was in doubt");
        });
    }
    Ok(())
}

#[test]
fn c4_a_step_found_in_time_costs_no_lock_and_renews_its_key() -> TestResult {
    needs!(SteppedClocks);
    let (servers, locks) = start_long();
    let guard = hold_on_two(&servers, &locks, false);
    let all = guard.remaining();
    eventually("some of it is over", || guard.remaining() + ms(500) < all);
    // The largest of many: between its two looks at the clock this thread may be stopped.
    let end = || (0..100).map(|_| guard.valid_until()).max().unwrap();
    let before = end();

    servers[0].step_clock_forward(secs(300))?;
    assert!(left_at(&servers[0]) < secs(301));
    let _seen = locks.check_nodes();

    eventually("it was confirmed", || locks.stats().extensions == 1);
    let (left, longer) = (guard.remaining(), end().saturating_duration_since(before));
    // Ttls are whole milliseconds.
    assert!(
        longer < ms(100),
        "a fixed lease was lengthened by {longer:?}"
    );
    assert!(left < left_at(&servers[0]) && secs(500) < left, "{left:?}");
    assert!(left_at(&servers[0]) < secs(601));
    // The doubt is gone.
    no_answer_does_no_harm(&servers, &guard, || ());
    Ok(())
}

#[test]
fn c4_a_clock_that_steps_on_and_on_costs_few_extensions_and_no_lock() -> TestResult {
    needs!(SteppedClocks);
    let (servers, locks) = start_long();
    let guard = hold_on_two(&servers, &locks, true);

    for _ in 0..20 {
        servers[0].step_clock_forward(secs(1))?;
        let _seen = locks.check_nodes();
    }

    eventually("the steps are seen", || locks.stats().clock_steps == 20);
    eventually("it was confirmed", || locks.stats().extensions == 1);
    assert!(guard.is_valid());
    // The second check would be in more than a minute.
    let stats = locks.stats();
    assert_eq!((stats.extensions, stats.extensions_failed), (1, 0));
    servers[2].resume()?;
    Ok(())
}

#[test]
fn c4_a_client_started_after_a_step_gets_a_larger_token() -> TestResult {
    // What is not prevented: this client has no history of these nodes, so it believes their uptime. Their counters stay.
    needs!(SteppedClocks);
    let servers = servers(3);
    age(&servers);
    let holder = connected(strict(&servers).ttl(secs(60)), 3);
    let first = holder.mutex("report").renew(false).lock()?;
    servers
        .iter()
        .try_for_each(|it| it.step_clock_forward(secs(120)))?;

    let second = strict(&servers).build()?.mutex("report").try_lock()?;

    assert!(first.is_valid() && second.is_valid());
    assert!(first.fencing_token() < second.fencing_token());
    // Managers that have seen the nodes before know better.
    let checks = holder.check_nodes();
    assert!(
        checks.iter().all(|it| is_quarantined(it.failure.as_ref())),
        "{checks:?}"
    );
    Ok(())
}

#[test]
fn c4_constant_steps_forward_are_logged_once_a_minute_and_steps_back_never() -> TestResult {
    needs!(SteppedClocks);
    let servers = servers(2);
    age(&servers);
    let mut child = child(
        "operations::log_lines::child_that_looks_at_its_nodes",
        &servers.urls(),
    );

    for _ in 0..5 {
        assert_eq!(child.hear(), "looked");
        servers[0].step_clock_forward(secs(45))?;
        servers[1].step_clock_back(secs(40))?;
        child.tell("look again");
    }
    assert_eq!(child.hear(), "looked");
    child.go_on();

    let lines = log_lines::warnings(&child);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN n0: "), "{lines:?}");
    assert!(lines[0].contains("set forward by 4"), "{lines:?}");
    Ok(())
}

/// A client whose wall clock is ten days ahead takes the lock, as long as it takes; what it says about that.
fn client_that_is_ahead(servers: &Servers, how: &str) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::create(folder.path()).unwrap();
    clock.step_forward(240 * HOUR).unwrap();
    let name = "nodes::clocks::child_with_a_fast_clock";
    let mut child = child_with(name, &servers.urls(), clock.environment());
    assert_eq!(child.hear(), "it is in ten days");
    child.tell(how);
    let token = child.hear().parse().unwrap();
    assert!(child.wait().success());
    token
}

#[test]
#[ignore = "a process of another test"]
fn child_with_a_fast_clock() {
    let Some(urls) = parent_urls() else { return };
    // Files have the system's time.
    let clock = std::env::var_os("QUORLOCK_CLOCK_FILE").unwrap();
    let ahead = std::fs::metadata(clock)
        .unwrap()
        .modified()
        .unwrap()
        .elapsed()
        .unwrap();
    say(if 239 * HOUR < ahead {
        "it is in ten days".to_owned()
    } else {
        format!("{ahead:?} ahead")
    });
    let locks = builder(urls).build().unwrap();
    let guard = match hear_parent().as_deref() {
        Some("wait") => locks.mutex("report").lock(),
        Some("try once") => locks.mutex("report").try_lock(),
        other => panic!("{other:?}"),
    };
    match guard {
        Ok(guard) => say(guard.fencing_token()),
        Err(err) => say(err),
    }
}

#[test]
fn c6_a_client_with_a_clock_far_ahead_gets_the_lock_and_moves_no_counter() -> TestResult {
    needs!(SteppedClocks);
    for how in ["wait", "try once"] {
        let servers = Servers::start(3)?;

        let token = client_that_is_ahead(&servers, how);

        let limit = in_an_hour();
        assert!(token <= limit, "{token} is above {limit}");
        // And the next one, with the right clock, needs no second round.
        let locks = connected(builder(servers.urls()), 3);
        let raises = locks.stats().fencing_raises;
        let guard = locks.mutex("report").lock()?;
        assert!(token < guard.fencing_token().get());
        assert_eq!(locks.stats().fencing_raises, raises);
        drop(guard);
        for server in &servers {
            let counter = String::from_utf8(server.get(fence("report")).unwrap())?;
            assert!(counter.parse::<u64>()? <= limit, "{counter}");
        }
    }
    Ok(())
}

#[test]
fn c6_a_node_hours_behind_is_reported_and_its_vote_not_needed() -> TestResult {
    needs!(SteppedClocks);
    let servers = servers(3);
    servers[0].step_clock_back(5 * HOUR)?;
    let locks = connected(impatient(servers.urls()).connect_timeout(secs(5)), 3);

    let guard = lock_in_the_end(&locks, "report");
    eventually("the other two have it", || {
        servers.iter().skip(1).all(|it| it.exists("report"))
    });
    guard.release()?;
    assert!(!servers[0].exists(fence("report")));

    servers[1].pause()?;
    // Whatever its counter holds.
    set(&servers[0], &fence("report"), "-5");
    let err = error_in_the_end(&locks, "report", |it| {
        matches!(it, quorlock::AcquireError::NoQuorum { .. })
    });
    assert_eq!(*failure(&err, 0), NodeFailure::ClockBehind, "{err}");
    assert!(
        err.to_string()
            .contains("more than half a quarantine apart"),
        "{err}"
    );
    servers[1].resume()?;
    let behind = |it: &NodeFinding| matches!(it, NodeFinding::ClockDiffers { by, ahead: false } if 4 * HOUR < *by);
    eventually("a look shows it as well", || {
        locks.check_nodes()[0].findings.iter().any(behind)
    });
    Ok(())
}

#[test]
fn c6_with_most_clocks_hours_behind_the_time_of_most_counts() -> TestResult {
    needs!(SteppedClocks);
    let servers = servers(3);
    let back = |it: &Server| it.step_clock_back(5 * HOUR);
    back(&servers[0])?;
    back(&servers[1])?;
    let locks = connected(builder(servers.urls()), 3);

    let first = locks.mutex("report").lock()?.fencing_token();
    let second = locks.mutex("report").try_lock()?.fencing_token();

    assert!(first < second, "{first} {second}");
    let four_hours_ago = in_an_hour() - u64::try_from((5 * HOUR).as_micros())?;
    assert!(second.get() < four_hours_ago, "{second}");
    Ok(())
}
