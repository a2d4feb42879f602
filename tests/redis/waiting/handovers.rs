//! Locks that a release hands over to the call that waits, and what can happen to that call.

use devnodes::{Proxy, Servers, eventually};
use quorlock::CancelHandle;

use crate::support::*;
use crate::waiting::contenders::{Contender, Pauses};
use crate::waiting::lists::*;

/// The life of a lock that was handed over.
const FIRST_LIFE_MS: i64 = 1_000;

#[test]
fn a_waiter_asks_again_when_the_reported_ttl_is_over() -> TestResult {
    let (servers, [locks]) = with_managers(|it| far(it).retry_delay(ms(1), secs(60)));
    for server in &servers {
        set_px(server, NAME, "foreign", 1_500);
    }

    // The longest pause is longer than a test's patience.
    let guard = join(wait_in_thread(locks.mutex(NAME)))?;

    guard.release()?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn the_mark_lives_as_long_as_the_list() -> TestResult {
    let (servers, [first, patient]) = with_managers(far);
    let brief = on_all(&servers, near);
    let held = hold(&first, &servers, NAME);
    let waiter = listed(&servers, 1, patient.mutex(NAME));

    // Its entry may be forgotten after seconds, the other one's after minutes.
    let cancel = CancelHandle::new();
    let cancelled = listed(&servers, 2, brief.mutex(NAME).cancelled_by(&cancel));
    cancel.cancel();
    assert!(join(cancelled).is_err());
    wait_until_listed(&servers, NAME, 1);

    for server in &servers {
        for key in [list(NAME), mark(NAME)] {
            let left = server.pttl(&key);
            assert!(100_000 < left, "{key} ends in {left} ms");
        }
    }
    drop(held);
    assert_gets_in(waiter, &servers);
    Ok(())
}

#[test]
fn a_release_without_a_key_still_sends_the_head_a_message() -> TestResult {
    let (servers, [first, second]) = with_managers(far);
    let held = hold(&first, &servers, NAME);
    let waiter = listed(&servers, 1, second.mutex(NAME));

    del_all(&servers, NAME);
    drop(held);

    drop(join(waiter)?);
    assert!(1 <= second.stats().notices);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_hand_over_that_no_majority_answers_ends_as_an_outage() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(impatient(servers.urls()).outage_timeout(ms(500)), 3);
    let held = hold(&locks, &servers, NAME);
    let waiter = queue(&locks);

    servers[1].pause()?;
    servers[2].pause()?;
    drop(held);

    assert_no_quorum(&join(waiter).unwrap_err());
    assert_eq!((locks.stats().hand_overs, locks.stats().waiting), (1, 0));
    for server in &servers.iter().as_slice()[1..] {
        server.resume()?;
    }
    nothing_waits(&servers);
    // For its outage timeout the manager may not know yet that they answer.
    drop(lock_in_the_end(&locks, NAME));
    Ok(())
}

#[test]
fn h28_a_holder_killed_after_its_hand_over_costs_a_second_and_no_ttl() -> TestResult {
    let (servers, [first, second]) = with_managers(near);
    for _ in 0..20 {
        let held = hold(&first, &servers, NAME);
        let mut head = Contender::first_in_line(&servers, Pauses::Near);
        let waiter = listed(&servers, 2, second.mutex(NAME));

        let mut earlier = held.fencing_token().get();
        held.release()?;
        let token = head.hear_held();
        assert!(earlier < token);
        earlier = token;
        head.kill();

        // Where it was faster than the signal it has extended the lock to its ttl, or it had to ask.
        let lives = |it: &devnodes::Server| it.pttl(NAME) <= FIRST_LIFE_MS;
        if !servers.iter().all(lives) {
            del_all(&servers, NAME);
            drop(join(waiter)?);
            nothing_waits(&servers);
            continue;
        }
        // Its ttl is far longer than a test's patience.
        let guard = join(waiter)?;
        assert!(earlier < guard.fencing_token().get());
        drop(guard);
        nothing_waits(&servers);
        return Ok(());
    }
    panic!("the machine is too slow to kill a process within 50 ms");
}

#[test]
fn h28_a_call_disconnected_during_its_hand_over_wins_by_asking() -> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let first = on_all(&servers, near);
    let second = connected(builder(urls).ttl(LONG), 3);
    let held = hold(&first, &servers, NAME);
    let earlier = held.fencing_token();
    let waiter = listed(&servers, 1, second.mutex(NAME));

    proxies.iter().for_each(Proxy::hold_replies);
    held.release()?;
    eventually("all have handed it over", || {
        servers.iter().all(|it| waiters_of(it, NAME).is_empty())
    });
    proxies.iter().for_each(Proxy::cut);
    proxies.iter().for_each(Proxy::release_replies);

    let guard = join(waiter)?;
    assert!(earlier < guard.fencing_token());
    drop(guard);
    nothing_waits(&servers);
    Ok(())
}
