//! Calls that wait for several names at once: what they are told, and what they keep from others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use devnodes::{PATIENCE, Servers};

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
