//! Calls are served in the order in which they began: across threads, managers and processes.

use std::time::{Duration, Instant};

use devnodes::{Servers, eventually};
use quorlock::LockManager;

use crate::support::*;
use crate::waiting::contenders::{Contender, Pauses, contend};
use crate::waiting::lists::*;

/// The life of a lock that was handed over, less a margin: a client that is stopped for as long loses its turn.
const FIRST_LIFE_AT_LEAST: Duration = ms(900);

/// Lets these managers wait for a lock, one behind the other, and frees it after the fault: they get it in that order. Again
/// with another lock, until no client was too slow for its turn.
#[track_caller]
fn assert_in_order(
    servers: &Servers,
    holder: &LockManager,
    queue: &[(&LockManager, &str)],
    fault: impl Fn(),
) {
    let expected = [
        &["free"],
        &queue.iter().map(|it| it.1).collect::<Vec<_>>()[..],
    ]
    .concat();
    for turn in 0..10 {
        let name = format!("report {turn}");
        let held = hold(holder, servers, &name);
        let order = Order::default();
        let mut threads = Vec::new();
        for (i, (locks, who)) in queue.iter().enumerate() {
            threads.push(order.queue(locks, locks.mutex(&name), who));
            wait_until_listed(servers, &name, i + 1);
        }
        fault();
        order.note("free");
        drop(held);
        threads.into_iter().for_each(join);
        let got = order.names();
        if got == expected {
            return nothing_waits(servers);
        }
        let is_slow = FIRST_LIFE_AT_LEAST <= order.longest_gap();
        assert!(is_slow, "the order was {got:?}");
    }
    panic!("the machine is too slow for the order to mean anything");
}

#[test]
fn calls_that_poll_fast_do_not_overtake_earlier_calls() {
    let (servers, [holder, a, c]) = with_managers(near);
    let [b, d] = [(); 2].map(|()| connected(near(&servers).retry_delay(ms(1), ms(2)), 3));
    let queue = [(&a, "a"), (&b, "b"), (&c, "c"), (&d, "d")];
    assert_in_order(&servers, &holder, &queue, || ());
}

#[test]
fn the_order_of_arrival_survives_a_node_that_is_restarted_empty() {
    let (servers, [holder, a, b, c]) = with_managers(near);
    let queue = [(&a, "a"), (&b, "b"), (&c, "c")];
    assert_in_order(&servers, &holder, &queue, || servers[2].restart().unwrap());
}

#[test]
fn h28_a_stopped_waiter_trusts_no_expired_hand_over_and_keeps_its_place() -> TestResult {
    let (servers, [first, third]) = with_managers(far);
    let second = on_all(&servers, near);
    let held = hold(&first, &servers, NAME);
    let mut head = Contender::first_in_line(&servers, Pauses::Far);
    let asks_again = listed(&servers, 2, second.mutex(NAME));
    let waits = listed(&servers, 3, third.mutex(NAME));
    let waiting = waiters_of(&servers[0], NAME);

    head.stop();
    drop(held);
    let guard = join(asks_again)?;
    head.resume();
    head.ping();
    // It has asked, late, and is in its place again. Where the lock was still reserved for it, its successor was not granted
    // the lock, and is on the list until it gives it back.
    eventually("both are on the lists", || {
        let mut lists = servers.iter().map(|it| waiters_of(it, NAME));
        lists.all(|it| it.contains(&waiting[0]) && it.contains(&waiting[2]))
    });
    guard.check()?;
    let earlier = guard.fencing_token().get();
    drop(guard);

    let token = head.hear_held();
    assert!(earlier < token);
    head.release();
    let guard = join(waits)?;
    assert!(token < guard.fencing_token().get());
    drop(guard);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn the_order_of_arrival_holds_across_managers_with_several_threads() -> TestResult {
    let (servers, [a, b, c]) = with_managers(far);
    // The lock is held by one of the managers that wait, or by another one.
    for (holder, first_is_listed) in [(&a, false), (&c, true)] {
        let held = hold(holder, &servers, NAME);
        let order = Order::default();
        let call = |locks: &LockManager, who: &str| order.queue(locks, locks.mutex(NAME), who);

        let a2 = call(&a, "A2");
        if first_is_listed {
            wait_until_listed(&servers, NAME, 1);
        }
        let b1 = call(&b, "B1");
        wait_until_listed(&servers, NAME, if first_is_listed { 2 } else { 1 });
        let a3 = call(&a, "A3");
        let b2 = call(&b, "B2");
        drop(held);

        [a2, b1, a3, b2].into_iter().for_each(join);
        assert_eq!(order.names(), ["A2", "B1", "A3", "B2"]);
        nothing_waits(&servers);
    }
    Ok(())
}

/// Processes that take one lock again and again.
#[track_caller]
fn nobody_starves(processes: usize, sections: u64) {
    let servers = Servers::start(3).unwrap();
    let start = Instant::now();

    let tally = contend(&servers, processes, sections);

    // A call that waits for long asks now and then: after the longest pause between tries, at the earliest.
    let pauses = u64::try_from(start.elapsed().as_millis() / 200 + 1).unwrap();
    let asked_anyway = u64::try_from(processes).unwrap() * pauses;
    eprintln!("{processes} processes: {tally:?}, and {pauses} pauses");
    assert_eq!(tally.won, u64::try_from(processes).unwrap() * sections);
    // Two for each lock. Wide, for machines that do something else meanwhile: a hand-over is won by the round in which its call
    // was refused, so most locks take one round and its refusal.
    assert!(tally.rounds < 2 * tally.won + 2 * asked_anyway, "{tally:?}");
    // Less than once for each lock: a process that asks when the lock is free can be faster than one that is on its way.
    assert!((tally.overtaken as u64) < tally.won, "{tally:?}");
    nothing_waits(&servers);
}

#[test]
fn eight_processes_that_loop_share_the_lock() {
    nobody_starves(8, 30);
}

#[test]
fn thirty_two_processes_that_loop_share_the_lock() {
    if long_tests() {
        nobody_starves(32, 20);
    }
}
