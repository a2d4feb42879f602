//! The queue inside a manager: first come, first served, and only the first asks the nodes.

use std::panic;
use std::thread;
use std::time::Instant;

use devnodes::{PATIENCE, Servers, eventually};
use quorlock::{AcquireError, CancelHandle, LockGuard, LostReason};

use crate::support::*;
use crate::waiting::lists::*;

#[test]
fn calls_behind_a_guard_of_their_manager_ask_no_node() -> TestResult {
    let servers = Servers::start(3)?;
    // A call that asked at all would ask again at once.
    let locks = connected(near(&servers).retry_delay(ms(1), ms(1)), 3);
    let other = manager(&servers);
    let held = hold(&locks, &servers, NAME);
    let before = locks.stats();

    let (order, lock) = (Order::default(), locks.mutex(NAME));
    let threads = repeat(20, || order.queue(&locks, lock.clone(), "a thread"));
    assert_eq!(locks.stats().waiting, 20);
    // Time goes by: another manager has a hundred rounds.
    for _ in 0..100 {
        drop(other.mutex("other").try_lock()?);
    }

    assert_eq!(locks.stats().commands, before.commands);
    assert_eq!(locks.stats().waiting, 20);
    assert!(servers.iter().all(|it| !it.exists(list(NAME))));
    assert_eq!(order.names().len(), 0);
    drop(held);
    threads.into_iter().for_each(join);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_hand_over_to_the_next_thread_is_one_release_on_each_node() -> TestResult {
    let (servers, [locks]) = with_managers(far);
    let held = hold(&locks, &servers, NAME);
    let waiter = queue(&locks);
    let before = locks.stats();
    let scripts: Vec<_> = servers.iter().map(scripts_run).collect();
    let earlier = held.fencing_token();

    drop(held);
    let guard = join(waiter)?;

    let after = locks.stats();
    assert!(earlier < guard.fencing_token());
    assert_eq!(after.hand_overs - before.hand_overs, 1);
    // The hold's first extension follows 50 ms later: on a busy machine it may have been sent by now.
    assert!([3, 6].contains(&(after.commands - before.commands)));
    assert_eq!(after.rounds_won - before.rounds_won, 1);
    assert_eq!(after.rounds_held, before.rounds_held);
    assert_eq!((after.releases - before.releases, after.waiting), (1, 0));
    eventually("each server was asked once", || {
        let mut all = servers.iter().zip(&scripts);
        all.all(|(it, before)| (before + 1..=before + 2).contains(&scripts_run(it)))
    });
    Ok(())
}

#[test]
fn calls_that_leave_the_queue_keep_the_order_of_the_others() -> TestResult {
    let (servers, [locks]) = with_managers(far);
    let held = hold(&locks, &servers, NAME);
    let (order, cancel) = (Order::default(), CancelHandle::new());

    let lock = locks.mutex(NAME);
    let (short, cancelled) = (lock.clone(), lock.clone().cancelled_by(&cancel));
    let first = order.queue(&locks, lock.clone(), "first");
    let cancelled = queue_up(&locks, move || cancelled.lock());
    let second = order.queue(&locks, lock.clone(), "second");
    let began = Instant::now();
    assert_held(&join(thread::spawn(move || short.try_lock_for(secs(1)))).unwrap_err());
    assert!(secs(1) <= began.elapsed());
    let third = order.queue(&locks, lock, "third");
    assert_eq!(locks.stats().waiting, 4);
    cancel.cancel();

    assert_eq!(join(cancelled).unwrap_err(), AcquireError::Cancelled);
    assert_eq!(locks.stats().waiting, 3);
    assert_eq!(order.names().len(), 0);
    held.check()?;
    drop(held);
    [first, second, third].into_iter().for_each(join);
    assert_eq!(order.names(), ["first", "second", "third"]);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_single_try_skips_the_queue() -> TestResult {
    let (servers, [elsewhere, locks]) = with_managers(far);
    for holder in [&locks, &elsewhere] {
        let held = hold(holder, &servers, NAME);
        let waiters = repeat(3, || queue(&locks));

        let lock = locks.mutex(NAME);
        let tries = thread::spawn(move || [lock.try_lock(), lock.try_lock_for(ms(0))]);
        for tried in join(tries) {
            assert_held(&tried.unwrap_err());
        }

        assert_eq!(locks.stats().waiting, 3);
        if holder.stats().waiting == 0 {
            wait_until_listed(&servers, NAME, 1);
        }
        drop(held);
        // Each of them has to give it back before the next one gets it.
        let mut waiters = waiters.into_iter();
        waiters.try_for_each(|it| join(it).map(drop))?;
        nothing_waits(&servers);
    }
    Ok(())
}

#[test]
fn an_expired_guard_blocks_no_call_of_its_manager() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(with_ttl(servers.urls(), secs(4)), 3);
    let held = locks.mutex(NAME).renew(false).try_lock_for(PATIENCE)?;
    let waiters = repeat(2, || queue(&locks));

    for waiter in waiters {
        let guard = join(waiter)?;
        assert_eq!(reason(held.check()), Err(LostReason::LeaseOver));
        guard.check()?;
        assert!(held.fencing_token() < guard.fencing_token());
        assert!(2 <= servers.holders(NAME));
    }
    // It has no more to do with the lock.
    let guard = hold(&locks, &servers, NAME);
    drop(held);
    guard.check()?;
    assert_eq!(servers.holders(NAME), 3);
    drop(guard);
    nothing_waits(&servers);
    Ok(())
}

/// A way in which a hold ends.
type End = fn(LockGuard);

#[test]
fn every_end_of_a_guard_hands_the_lock_over() -> TestResult {
    let ends: [(&str, End); 4] = [
        ("dropped", drop),
        ("released", |it| assert_eq!(it.release().unwrap().nodes, 3)),
        ("dropped in another thread", |it| {
            join(thread::spawn(move || drop(it)))
        }),
        ("dropped by a panic", |it| {
            let section = thread::spawn(move || {
                let _guard = it;
                // A panic that does not write to the log of the tests.
                panic::resume_unwind(Box::new("a panic in the section"));
            });
            eventually("the section ends", || section.is_finished());
            assert!(section.join().is_err());
        }),
    ];
    let (servers, [locks]) = with_managers(far);
    for (how, end) in ends {
        let held = hold(&locks, &servers, NAME);
        let waiter = queue(&locks);
        let before = locks.stats().hand_overs;

        end(held);

        drop(join(waiter)?);
        assert_eq!(locks.stats().hand_overs, before + 1, "{how}");
    }
    nothing_waits(&servers);
    Ok(())
}
