//! Locks that a release hands over to the call that waits, and what can happen to that call.

use std::thread;
use std::time::{Duration, Instant};

use devnodes::{PATIENCE, Proxy, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeReport};
use quorlock::{AcquireError, Builder, CancelHandle, LockManager, Stats};

use crate::support::*;
use crate::waiting::contenders::{Contender, Manner};
use crate::waiting::lists::*;

/// The life of a lock that was handed over, and the least of it that a test relies on.
const FIRST_LIFE_MS: i64 = 1_000;
const FIRST_LIFE_AT_LEAST: Duration = ms(900);

/// Options under which nothing but a notice, or the end of the keys in its way, gives a waiting call the lock.
fn keen(servers: &Servers) -> Builder {
    far(servers).retry_delay(ms(1), secs(60))
}

/// Whether the servers have handed the lock over to the call of this entry.
fn is_handed_over(servers: &Servers, member: &str) -> bool {
    servers
        .iter()
        .all(|it| it.get(NAME).as_deref() == Some(&member.as_bytes()[17..]))
}

#[test]
fn a_call_that_wins_by_asking_leaves_all_lists() -> TestResult {
    let (servers, [locks]) = with_managers(far);
    set_all(&servers, NAME, "foreign");
    let waiter = listed(&servers, 1, locks.mutex(NAME));
    let member = members_of(&servers[0], NAME).remove(0);

    // No node has handed it over, so none has removed it from its list.
    del_all(&servers, NAME);
    servers.iter().for_each(|it| prod(it, &member, NAME));

    let guard = join(waiter)?;
    eventually("it is on no list, and no mark is left", || {
        let left = servers.holders(list(NAME)) + servers.holders(mark(NAME));
        (servers.holders(NAME), left) == (3, 0)
    });
    guard.release()?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_waiter_asks_again_when_the_reported_ttl_is_over() -> TestResult {
    let (servers, [locks]) = with_managers(keen);
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
fn h28_a_stopped_waiter_does_not_trust_an_expired_hand_over() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, keen));
    let held = hold(&first, &servers, NAME);
    let mut head = Contender::first_in_line(&servers, Manner::FAR);
    let member = members_of(&servers[0], NAME).remove(0);

    head.stop();
    held.release()?;
    eventually("it is handed over", || {
        is_handed_over(&servers, &member) || servers.holders(NAME) == 0
    });

    // Nothing tells it of the end of the first life.
    let guard = join(wait_in_thread(second.mutex(NAME)))?;
    head.resume();
    // It reads what it was handed, asks, and is refused. The holder may be on a list as well: of the server that refused it
    // when the others granted.
    wait_until_client_listed(&servers, NAME, &client_of(&member));
    head.ping();
    guard.check()?;
    let earlier = guard.fencing_token().get();
    guard.release()?;

    assert!(earlier < head.hear_held());
    head.release();
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
fn a_leaving_call_releases_no_hand_over_to_another() -> TestResult {
    for _ in 0..10 {
        let servers = Servers::start(3)?;
        let [first, second, third] = [(); 3].map(|()| on_all(&servers, far));
        let held = hold(&first, &servers, NAME);
        let mut head = Contender::first_in_line(&servers, Manner::FAR);
        let cancel = CancelHandle::new();
        let leaver = listed(&servers, 2, second.mutex(NAME).cancelled_by(&cancel));
        let last = listed(&servers, 3, third.mutex(NAME));

        let member = members_of(&servers[0], NAME).remove(0);

        // The head has been handed the lock while another one leaves.
        head.stop();
        let began = Instant::now();
        held.release()?;
        eventually("it is handed over", || {
            is_handed_over(&servers, &member) || FIRST_LIFE_AT_LEAST <= began.elapsed()
        });
        cancel.cancel();
        assert!(matches!(join(leaver), Err(AcquireError::Cancelled)));
        eventually("it is off the lists", || {
            servers.iter().all(|it| waiters_of(it, NAME).len() <= 1)
        });
        if FIRST_LIFE_AT_LEAST <= began.elapsed() {
            // The first life may have been over.
            third.shutdown();
            let _ = join(last);
            continue;
        }

        assert!(
            servers.iter().all(|it| waiters_of(it, NAME).len() == 1),
            "the one behind the head was handed the lock"
        );
        head.resume();
        let earlier = head.hear_held();
        assert!(!last.is_finished());
        head.release();
        let guard = join(last)?;
        assert!(earlier < guard.fencing_token().get());
        drop(guard);
        nothing_waits(&servers);
        return Ok(());
    }
    panic!("the machine is too slow to leave a list within a second");
}

#[test]
fn a_dead_last_entry_leaves_no_list_and_no_mark() -> TestResult {
    let (servers, [locks]) = with_managers(far);
    let held = hold(&locks, &servers, NAME);
    let mut head = Contender::first_in_line(&servers, Manner::FAR);
    let members = waiters_of(&servers[0], NAME);
    head.kill();
    wait_until_deaf(&servers, &members);

    drop(held);

    // List and mark would expire after more than `PATIENCE`.
    nothing_waits(&servers);
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
fn a_waiter_gets_messages_over_its_next_connections() -> TestResult {
    let (servers, [first, second]) = with_managers(far);
    let held = hold(&first, &servers, NAME);
    let waiter = listed(&servers, 1, second.mutex(NAME));
    let members = waiters_of(&servers[0], NAME);

    for server in &servers {
        let cut = server.command(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"])?;
        assert!(Some(1) <= cut.as_int());
    }
    // By itself: the next time that it asks is after the end of the test.
    eventually("it listens again", || {
        6 <= second.stats().connections && servers.iter().all(|it| listeners_of(it) == members)
    });
    drop(held);
    assert_gets_in(waiter, &servers);
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
fn a_waiter_listens_before_it_is_on_a_list() -> TestResult {
    needs!(CommandMonitor);
    let servers = Servers::start(1)?;
    let (first, second) = (on_all(&servers, far), on_all(&servers, far));
    let held = hold(&first, &servers, NAME);
    let mut monitor = servers[0].client()?;
    monitor.command(&["MONITOR"])?;

    let waiter = wait_in_thread(second.mutex(NAME));

    // What was released in between would be announced to nobody.
    let mut heard = Vec::new();
    while !heard.iter().any(|it: &String| it.contains("EVALSHA")) {
        heard.push(monitor.receive()?.as_str().unwrap().to_owned());
    }
    assert!(heard.iter().any(|it| it.contains("SUBSCRIBE")), "{heard:?}");
    wait_until_listed(&servers, NAME, 1);
    drop(held);
    assert_gets_in(waiter, &servers);
    Ok(())
}

#[test]
fn a_waiter_that_releases_a_grant_enters_that_list_too() -> TestResult {
    let (servers, [locks]) = with_managers(near);
    // One node grants it the lock, which is no majority.
    (0..2).for_each(|it| set(&servers[it], NAME, "foreign"));

    let cancel = CancelHandle::new();
    let waiter = wait_in_thread(locks.mutex(NAME).cancelled_by(&cancel));

    // It asks again and again, and is granted the lock by that node for a moment each time.
    eventually("it is on all lists, with one place", || {
        let client = waiters_of(&servers[0], NAME).pop();
        let place = |it| client.as_ref().and_then(|client| since(it, NAME, client));
        let places: Vec<_> = servers.iter().map(place).collect();
        places[0].is_some() && places.iter().all(|it| *it == places[0]) && !servers[2].exists(NAME)
    });
    cancel.cancel();
    assert!(join(waiter).is_err());
    (0..2).for_each(|it| del(&servers[it], NAME));
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_held_lock_is_handed_to_no_call() -> TestResult {
    let (servers, [first, second, third, fourth]) = with_managers(far);
    let held = hold(&first, &servers, NAME);
    let head = listed(&servers, 1, second.mutex(NAME));
    let members = waiters_of(&servers[0], NAME);

    // One is refused, one comes and leaves again.
    let err = fourth.mutex(NAME).try_lock().unwrap_err();
    let not_held =
        |it: &&NodeReport| !matches!(it.answer, NodeAnswer::Held { .. } | NodeAnswer::Pending);
    assert_eq!(err.nodes().iter().find(not_held), None);
    let cancel = CancelHandle::new();
    let leaver = listed(&servers, 2, third.mutex(NAME).cancelled_by(&cancel));
    cancel.cancel();
    assert!(join(leaver).is_err());

    eventually("the head is where it was", || {
        servers.iter().all(|it| waiters_of(it, NAME) == members)
    });
    // Its answers come behind all notices.
    drop(second.mutex("other").try_lock_for(PATIENCE)?);
    assert_eq!(second.stats().notices, 0);
    drop(held);
    assert_gets_in(head, &servers);
    Ok(())
}

#[test]
fn eight_managers_hold_one_after_the_other_in_order_by_hand_overs() -> TestResult {
    let (servers, [holder]) = with_managers(near);
    let managers = repeat(8, || on_all(&servers, near));
    let names: Vec<_> = (0..8).map(|it| it.to_string()).collect();

    // A call that has not asked for most of a first life asks again. On a slow machine that can be any call.
    let mut without_asking = 0;
    for turn in 0..20 {
        let name = format!("{NAME} {turn}");
        let held = hold(&holder, &servers, &name);
        let order = Order::default();
        let before: Vec<_> = managers.iter().map(LockManager::stats).collect();
        let mut threads = Vec::new();
        for (i, (locks, who)) in managers.iter().zip(&names).enumerate() {
            threads.push(order.queue(locks, locks.mutex(&name), who));
            wait_until_listed(&servers, &name, i + 1);
        }
        drop(held);
        threads.into_iter().for_each(join);

        let is_slow = FIRST_LIFE_AT_LEAST <= order.longest_gap();
        let got = order.names();
        assert!(got == names || is_slow, "{got:?}");
        let asked_once = |(locks, before): (&LockManager, &Stats)| {
            let after = locks.stats();
            let refused = after.rounds_held - before.rounds_held;
            // Each refused round and the release: one command for each server.
            after.rounds_won - before.rounds_won == 1
                && after.commands - before.commands == 3 * (refused + 1)
        };
        without_asking += managers
            .iter()
            .zip(&before)
            .filter(|it| asked_once(*it))
            .count();
        if 8 <= without_asking {
            nothing_waits(&servers);
            return Ok(());
        }
    }
    panic!("in 20 turns of eight only {without_asking} did not ask again");
}

#[test]
fn h28_a_holder_killed_after_its_hand_over_costs_a_second_and_no_ttl() -> TestResult {
    let (servers, [first, second]) = with_managers(near);
    for _ in 0..20 {
        let held = hold(&first, &servers, NAME);
        let mut head = Contender::first_in_line(&servers, Manner::USUAL);
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

#[test]
fn a_holder_heals_its_lock_on_a_server_with_waiting_calls() -> TestResult {
    let servers = Servers::start(3)?;
    let holder = connected(with_ttl(servers.urls(), secs(3)), 3);
    let managers = repeat(5, || on_all(&servers, near));
    let held = hold(&holder, &servers, NAME);
    let value = servers[0].get(NAME);
    let mut waiters = Vec::new();
    for locks in &managers {
        let lock = locks.mutex(NAME);
        waiters.push(thread::spawn(move || lock.lock().map(drop)));
    }
    wait_until_listed(&servers, NAME, 5);

    del(&servers[2], NAME);

    eventually("it is its holder's again", || servers[2].get(NAME) == value);
    let began = Instant::now();
    let mut lost = 0;
    while began.elapsed() < secs(5) {
        lost += usize::from(servers[2].get(NAME) != value);
    }
    assert_eq!(lost, 0, "it stays");
    held.check()?;
    held.release()?;
    for waiter in waiters {
        join(waiter)?;
    }
    nothing_waits(&servers);
    Ok(())
}
