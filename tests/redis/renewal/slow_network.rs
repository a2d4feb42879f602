//! Held locks behind ways that take longer than the response timeout: a confirmation counts as long as the lease lasts.

use std::thread;
use std::time::{Duration, Instant};

use devnodes::{PATIENCE, Proxy, eventually};
use quorlock::{ExtendError, LockGuard, LockManager, LostReason};

use crate::support::*;

const RESPONSE_TIMEOUT: Duration = ms(100);
const DELAY: Duration = ms(300);

fn slow_down(proxies: &[Proxy]) {
    proxies.iter().for_each(|it| it.set_delay(DELAY));
}

/// Waits until the leases of all last beyond `end`, and none was lost on the way.
#[track_caller]
fn extended_beyond(end: Instant, locks: &LockManager, guards: &[LockGuard]) {
    eventually("all are extended", || {
        assert_eq!(locks.stats().locks_lost, 0, "of {}", guards.len());
        guards.iter().all(|it| end < it.valid_until())
    });
}

#[test]
fn h21_answers_after_three_response_timeouts_lose_no_lock() -> TestResult {
    let (count, ttl) = if long_tests() {
        (2_000, secs(10))
    } else {
        (40, secs(6))
    };
    let (_servers, proxies, locks) = start_behind_proxies(3, |urls| {
        builder(urls).response_timeout(RESPONSE_TIMEOUT).ttl(ttl)
    });
    let guards: Vec<_> = (0..count)
        .map(|it| lock_in_the_end(&locks, &format!("{it}")))
        .collect();

    slow_down(&proxies);
    // Beyond all that was confirmed before the ways were slow.
    extended_beyond(Instant::now() + ttl * 3 / 2, &locks, &guards);

    let cut = || {
        let began = Instant::now();
        thread::sleep(ttl * 3 / 10);
        began.elapsed()
    };
    proxies.iter().for_each(|it| {
        it.hold_requests();
        it.hold_replies();
    });
    let took = cut();
    proxies.iter().for_each(|it| {
        it.release_requests();
        it.release_replies();
    });
    // On a busy machine it was cut for longer.
    if took < ttl * 2 / 5 {
        extended_beyond(Instant::now() + ttl * 9 / 10, &locks, &guards);
    }

    if long_tests() {
        proxies.iter().for_each(|it| {
            it.set_delay(Duration::ZERO);
            it.refuse(true);
            it.cut();
        });
        let took = cut();
        proxies.iter().for_each(|it| it.refuse(false));
        if took < ttl * 2 / 5 {
            extended_beyond(Instant::now() + ttl * 9 / 10, &locks, &guards);
        }
    }
    Ok(())
}

#[test]
fn h21_an_extension_counts_after_its_caller_has_timed_out() -> TestResult {
    let (_servers, proxies, locks) = start_behind_proxies(3, |urls| {
        builder(urls)
            .response_timeout(RESPONSE_TIMEOUT)
            .ttl(secs(20))
            .renew(false)
    });
    let guard = lock_in_the_end(&locks, "report");

    slow_down(&proxies);
    assert_matches!(guard.extend(LONG), Err(ExtendError::NoQuorum { .. }));
    assert!(guard.remaining() < secs(20));

    eventually("it is extended", || secs(400) < guard.remaining());
    assert_eq!(locks.stats().extensions, 1);
    Ok(())
}

#[test]
fn a_loss_shown_by_late_answers_is_announced_with_them() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, |urls| {
        builder(urls).response_timeout(RESPONSE_TIMEOUT).ttl(LONG)
    });
    let guard = lock_in_the_end(&locks, "report");
    let lost = guard.lost();
    eventually("it is on all nodes", || servers.holders("report") == 3);
    servers.iter().take(2).for_each(|it| del(it, "report"));

    slow_down(&proxies);
    assert_matches!(guard.extend(LONG), Err(ExtendError::NoQuorum { .. }));

    assert_eq!(
        lost.recv_timeout(PATIENCE).map(|it| it.reason),
        Ok(LostReason::Gone)
    );
    Ok(())
}
