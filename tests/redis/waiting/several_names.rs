//! Calls that wait for several names at once: what they are told, and what they keep from others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use devnodes::{PATIENCE, Servers};
use quorlock::AcquireError;
use quorlock::error::HeldBy;

use crate::kinds::several_names::*;
use crate::support::*;
use crate::waiting::lists::*;

#[test]
fn a_call_for_several_names_waits_in_the_list_of_its_refused_name() -> TestResult {
    let (servers, [holder, waiter]) = with_managers(far);
    let held = NAMES.map(|it| hold(&holder, &servers, it));

    let waiting = wait_for(waiter.multi_lock(NAMES));
    // One after another is in its way.
    for (name, guard) in NAMES.into_iter().zip(held) {
        wait_until_listed(&servers, name, 1);
        for other in NAMES.into_iter().filter(|it| *it != name) {
            assert_eq!(servers.holders(list(other)), 0, "in one list");
        }
        assert!(!waiting.is_finished());
        guard.release()?;
    }

    // Nothing but notices can have told it.
    let guard = join(waiting)?;
    assert!(guard.is_valid());
    guard.release()?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_release_of_several_names_hands_each_to_its_first_waiter() -> TestResult {
    let (servers, [holder]) = with_managers(far);
    let others = NAMES.map(|_| on_all(&servers, far));
    let held = holder.multi_lock(NAMES).lock()?;
    wait_until_everywhere(&servers, &NAMES);
    let waiting = [0, 1, 2].map(|it| listed(&servers, 1, others[it].mutex(NAMES[it])));

    held.release()?;

    for guard in waiting {
        join(guard)?.release()?;
    }
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn j3_no_name_is_idle_while_a_call_for_several_waits_for_another() -> TestResult {
    let (servers, [holder, waiter]) = with_managers(far);
    let others = repeat(3, || on_all(&servers, far));
    let (a, c) = (hold(&holder, &servers, "a"), hold(&holder, &servers, "c"));
    let several = wait_for(waiter.multi_lock(["a", "b", "c"]));
    wait_until_listed(&servers, "a", 1);

    // Free, and nobody's.
    for _ in 0..5 {
        others[0].mutex("b").try_lock()?.release()?;
        servers.wait_until_free("b")?;
    }
    // It stands before them in the list of a name, is told that this one is free, and finds another in its way.
    let order = Order::default();
    let singles: Vec<_> = others
        .iter()
        .enumerate()
        .map(|(i, it)| {
            let single = order.queue(it, it.mutex("a"), &i.to_string());
            wait_until_listed(&servers, "a", i + 2);
            single
        })
        .collect();
    a.release()?;
    singles.into_iter().for_each(join);
    assert_eq!(order.names(), ["0", "1", "2"], "one after the other");

    assert!(!several.is_finished());
    wait_until_listed(&servers, "c", 1);
    c.release()?;
    join(several)?.release()?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn calls_for_the_same_names_queue_in_their_manager_and_are_handed_the_lock() -> TestResult {
    let (servers, [locks]) = with_managers(far);
    let held = locks.multi_lock(["a", "b"]).lock()?;
    wait_until_everywhere(&servers, &["a", "b"]);
    let before = locks.stats();

    let waiting: Vec<_> = (0..4)
        .map(|i| {
            // The order of the names makes no difference.
            let lock = locks.multi_lock([&["b", "a"][..], &["a", "b", "a"]][i % 2]);
            queue_up(&locks, move || lock.lock().map(drop))
        })
        .collect();
    let commands = locks.stats().commands;
    assert_eq!(commands, before.commands, "the manager holds it itself");
    let err = locks.multi_lock(["a", "b"]).try_lock_for(ms(0));
    assert_matches!(err, Err(AcquireError::Held { by, .. }) if *by == HeldBy::ThisThread);
    held.release()?;
    for thread in waiting {
        join(thread)?;
    }

    assert_eq!(locks.stats().hand_overs - before.hand_overs, 4);
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_free_name_is_handed_over_if_the_next_call_cannot_get_all() -> TestResult {
    let (servers, [locks, early, late]) = with_managers(far);
    let held = locks.multi_lock(["a", "b"]).lock()?;
    wait_until_everywhere(&servers, &["a", "b"]);
    // Before the next call of the manager for both, somebody waits for the one, and behind it somebody for the other.
    let first = listed(&servers, 1, early.mutex("a"));
    let both = locks.multi_lock(["a", "b"]);
    let next = queue_up(&locks, move || both.lock());
    let behind = listed(&servers, 1, late.mutex("b"));

    held.release()?;

    let (a, b) = (join(first)?, join(behind)?);
    assert!(!next.is_finished());
    a.release()?;
    b.release()?;
    join(next)?.release()?;
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_stream_of_single_holders_lets_a_call_for_both_names_in() -> TestResult {
    let servers = Servers::start(3)?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let singles: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|name| {
                let (servers, done) = (&servers, &done);
                scope.spawn(move || {
                    let locks = builder(servers.urls()).build().unwrap();
                    while !done.load(Ordering::SeqCst) {
                        drop(locks.mutex(name).lock().unwrap());
                    }
                })
            })
            .collect();
        let locks = builder(servers.urls()).build().unwrap();
        let began = Instant::now();
        let got = locks
            .multi_lock(["a", "b"])
            .try_lock_for(PATIENCE)
            .map(drop);
        done.store(true, Ordering::SeqCst);
        singles.into_iter().for_each(join_scoped);
        assert!(got.is_ok(), "{got:?} after {:?}", began.elapsed());
    });
    nothing_waits(&servers);
    Ok(())
}
