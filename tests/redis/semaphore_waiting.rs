//! Permits that are waited for: who is told of one, and in which order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use devnodes::{Servers, eventually};
use quorlock::error::NodeAnswer;
use quorlock::{AcquireError, CancelHandle};
use rustix::process::Signal;

use crate::lists::{channel, far, listeners_of, on_all, strings, wait_as_child};
use crate::semaphore::*;
use crate::support::*;

#[test]
fn k6_every_waiting_call_is_told_when_it_is_its_turn_also_where_two_permits_come_back_at_once()
-> TestResult {
    let servers = Servers::start(3)?;
    let holder = on_all(&servers, far);
    let waiters = repeat(3, || on_all(&servers, far));
    let held: Vec<_> = (0..2)
        .map(|_| {
            let permit = holder.semaphore(NAME, 2).acquire().unwrap();
            wait_until_everywhere(&servers, &permit);
            permit
        })
        .collect();
    let mut waiting = Vec::new();
    for (i, locks) in waiters.iter().enumerate() {
        waiting.push(wait_for(locks.semaphore(NAME, 2)));
        wait_until_listed(&servers, i + 1);
    }

    // Nothing but notices can give them one.
    drop(held);

    let last = waiting.pop().unwrap();
    let first: Vec<_> = waiting.into_iter().map(|it| join(it).unwrap()).collect();
    assert!(!last.is_finished(), "the last is served last");
    wait_until_listed(&servers, 1);
    drop(first);
    join(last)?.release()?;
    nothing_is_left_of_it(&servers);
    Ok(())
}

#[test]
fn who_takes_a_slot_while_others_are_free_tells_the_next() -> TestResult {
    let servers = Servers::start(3)?;
    let waiters = repeat(2, || on_all(&servers, far));
    servers
        .iter()
        .for_each(|it| (0..2).for_each(|slot| set(it, &slot_key(slot), "foreign")));
    let mut waiting = Vec::new();
    for (i, locks) in waiters.iter().enumerate() {
        waiting.push(wait_for(locks.semaphore(NAME, 2)));
        wait_until_listed(&servers, i + 1);
    }
    let members = strings(&servers[0].command(&["ZRANGE", &list(), "0", "-1"])?);
    let (client, together) = members[0].split_once('/').unwrap();

    // Both are free, and only the first call is told.
    for server in &servers {
        server.command(&["DEL", &slot_key(0), &slot_key(1)])?;
        server.command(&["PUBLISH", &channel(client), together])?;
    }

    let permits: Vec<_> = waiting.into_iter().map(|it| join(it).unwrap()).collect();
    assert_ne!(permits[0].slot(), permits[1].slot());
    drop(permits);
    nothing_is_left_of_it(&servers);
    Ok(())
}

#[test]
fn one_free_slot_is_left_to_each_call_that_comes_first_and_the_others_are_for_whoever_comes()
-> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, far);
    // One that began before all others, and one that will begin after them. They poll, and do not come.
    let (early, later) = (
        "0123456789abcdef/quorlock:slots:0",
        "0123456789abcdee/quorlock:slots:0",
    );
    let line_up = |is_told: bool| {
        for server in &servers {
            server
                .command(&[
                    "ZADD",
                    &list(),
                    "1.5",
                    early,
                    &in_an_hour().to_string(),
                    later,
                ])
                .unwrap();
            let now = strings(&server.command(&["TIME"]).unwrap());
            let reserved = format!(
                "{} {early} 1",
                now[0].parse::<u64>().unwrap() * 1_000 + 1_000
            );
            let value = if is_told { &reserved } else { "0 " };
            server
                .command(&["SET", &reservation(), value, "PX", "600000"])
                .unwrap();
        }
    };
    let refused = || {
        let Err(err) = locks.semaphore(NAME, 4).try_acquire() else {
            return false;
        };
        2 <= err
            .nodes()
            .iter()
            .filter(|it| matches!(it.answer, NodeAnswer::Reserved { .. }))
            .count()
    };

    let mut held = Vec::new();
    for is_told in [false, true, false] {
        line_up(is_told);
        let (permit, rounds) = take(&locks, 4);
        assert_eq!(rounds, 1);
        wait_until_everywhere(&servers, &permit);
        held.push(permit);
    }
    line_up(false);
    assert!(refused());
    // For a second at most, which may be over when it asks.
    eventually("the last is left to the one that was told", || {
        line_up(true);
        refused()
    });
    Ok(())
}

#[test]
fn a_permit_that_is_given_back_goes_to_a_thread_of_its_process_with_the_release() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, far);
    let lock = locks.semaphore(NAME, 1);
    let mut held = Some(lock.acquire()?);
    // A call whose own attempt is just under way is not handed another.
    eventually("a permit is handed over", || {
        let refused = locks.stats().rounds_held;
        let waiting = wait_for(lock.clone());
        eventually("it waits", || refused < locks.stats().rounds_held);
        drop(held.take());
        held = Some(join(waiting).unwrap());
        1 <= locks.stats().hand_overs
    });
    drop(held);
    nothing_is_left_of_it(&servers);
    Ok(())
}

#[test]
fn many_threads_of_one_manager_share_the_permits() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_all(&servers, far);
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..12 {
            let (lock, inside) = (locks.semaphore(NAME, 4), &inside);
            scope.spawn(move || {
                for _ in 0..4 {
                    let permit = lock.acquire().unwrap();
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < 4);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    permit.release().unwrap();
                }
            });
        }
    });
    nothing_is_left_of_it(&servers);
    Ok(())
}

#[test]
fn k6_a_call_that_ends_or_dies_keeps_nobody_out() -> TestResult {
    let servers = Servers::start(3)?;
    let (holder, other) = (on_all(&servers, far), on_all(&servers, far));
    let held = holder.semaphore(NAME, 1).acquire()?;
    wait_until_everywhere(&servers, &held);
    let mut dead = child("semaphore_waiting::child_that_waits", &servers.urls());
    assert_eq!(dead.hear(), "waits");
    wait_until_listed(&servers, 1);
    let (cancel, locks) = (CancelHandle::new(), on_all(&servers, far));
    let cancelled = wait_for(locks.semaphore(NAME, 1).cancelled_by(&cancel));
    wait_until_listed(&servers, 2);
    let waiting = wait_for(other.semaphore(NAME, 1));
    wait_until_listed(&servers, 3);

    cancel.cancel();
    assert!(matches!(
        join(cancelled),
        Err(AcquireError::Cancelled { .. })
    ));
    wait_until_listed(&servers, 2);
    let members = strings(&servers[0].command(&["ZRANGE", &list(), "0", "-1"])?);
    dead.signal(Signal::KILL);
    assert!(!dead.wait().success());
    eventually("nobody listens for it", || {
        servers
            .iter()
            .all(|it| !listeners_of(it).contains(&members[0][..16].to_owned()))
    });
    held.release()?;

    join(waiting)?.release()?;
    nothing_is_left_of_it(&servers);
    Ok(())
}

/// As where a leave command was lost with its connection.
#[test]
fn a_manager_that_is_told_of_a_permit_when_its_call_is_gone_passes_it_on_at_once() -> TestResult {
    let servers = Servers::start(3)?;
    let [holder, gone, other] = [(); 3].map(|()| on_all(&servers, far));
    let held = holder.semaphore(NAME, 1).acquire()?;
    wait_until_everywhere(&servers, &held);
    let cancel = CancelHandle::new();
    let cancelled = wait_for(gone.semaphore(NAME, 1).cancelled_by(&cancel));
    wait_until_listed(&servers, 1);
    let member = strings(&servers[0].command(&["ZRANGE", &list(), "0", "-1"])?).remove(0);
    cancel.cancel();
    assert!(join(cancelled).is_err());
    wait_until_listed(&servers, 0);

    let waiting = wait_for(other.semaphore(NAME, 1));
    wait_until_listed(&servers, 1);
    servers
        .iter()
        .try_for_each(|it| it.command(&["ZADD", &list(), "1", &member]).map(drop))?;
    held.release()?;

    // Nothing but what the other manager says can have told it.
    join(waiting)?.release()?;
    nothing_is_left_of_it(&servers);
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_waits() {
    wait_as_child(|locks| locks.semaphore(NAME, 1).acquire());
}
