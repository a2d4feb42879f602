//! Locks whose hold ended badly, where their keys are left to expire.

use std::panic::{AssertUnwindSafe, catch_unwind};

use devnodes::{PATIENCE, Servers, eventually};
use quorlock::{ExtendError, LockGuard, LockManager, Lost};

use crate::lists::*;
use crate::support::*;

fn delaying(servers: &Servers) -> LockManager {
    connected(builder(servers.urls()).ttl(LONG).lock_delay(true), 3)
}

/// A panic goes through the guard's scope.
fn panic_with(guard: LockGuard) {
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(panicked.is_err());
}

#[test]
fn f3_a_lock_whose_guard_is_dropped_by_a_panic_is_left_to_expire_if_that_is_wanted() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, others) = (delaying(&servers), manager(&servers));
    let guard = hold(&locks, &servers, "report");
    let (lost, releases) = (guard.lost(), locks.stats().releases);

    panic_with(guard);

    // What is sent next comes behind whatever was sent then.
    assert_held(&others.mutex("report").try_lock().unwrap_err());
    assert_held(&locks.mutex("report").try_lock().unwrap_err());
    assert_eq!(servers.holders("report"), 3);
    // Nobody lost it: it was given up.
    assert!(lost.recv().is_err());
    assert_eq!(
        (locks.stats().locks_lost, locks.stats().releases),
        (0, releases)
    );
    Ok(())
}

#[test]
fn without_a_panic_a_guard_releases_the_lock_also_where_bad_ends_are_delayed() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = delaying(&servers);

    drop(hold(&locks, &servers, "report"));
    nothing_is_left(&servers);
    hold(&locks, &servers, "report").release()?;

    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn what_is_left_of_a_lost_lock_expires_if_that_is_wanted_and_is_deleted_otherwise() -> TestResult {
    let servers = Servers::start(3)?;
    for delayed in [true, false] {
        let locks = connected(builder(servers.urls()).ttl(LONG).lock_delay(delayed), 3);
        let guard = hold(&locks, &servers, "report");
        let lost = guard.lost();
        for server in servers.iter().take(2) {
            server.command(&["DEL", "report"])?;
        }

        assert_eq!(guard.extend(LONG), Err(ExtendError::Lost(Lost::Gone)));

        assert_eq!(
            lost.recv_timeout(PATIENCE).expect("the loss is announced"),
            Lost::Gone
        );
        drop(guard);
        // Everything that was sent has been answered when the manager is gone.
        drop(locks);
        assert_eq!(servers[2].exists("report"), delayed);
        servers[2].command(&["DEL", "report"])?;
    }
    Ok(())
}

#[test]
fn whoever_waits_behind_a_lock_that_is_left_to_expire_gets_it_then() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = connected(impatient(servers.urls()).lock_delay(true), 3);
    let others = connected(impatient(servers.urls()), 3);
    let lock = locks.mutex(NAME).ttl(secs(2)).renew(false);
    let guard = lock.lock()?;
    let token = guard.fencing_token();
    // One after the other, in whatever order: each gives it back at once.
    let calls = [&locks, &others].map(|it| {
        let lock = it.mutex(NAME);
        queue_up(it, move || lock.lock().map(|it| it.fencing_token()))
    });
    eventually("the other one stands in the lists", || {
        !waiters_of(&servers[0], NAME).is_empty()
    });

    panic_with(guard);

    let tokens = calls.map(|it| join(it).unwrap());
    assert!(tokens.iter().all(|it| token < *it), "{token} {tokens:?}");
    nothing_waits(&servers);
    Ok(())
}

#[test]
fn a_lock_that_is_left_to_expire_leaves_the_waiting_lists() -> TestResult {
    let servers = Servers::start(3)?;
    // The list lasts for longer than anybody looks.
    let locks = connected(far(&servers).lock_delay(true), 3);
    // It is entered in the list of the one node that refuses it.
    set(&servers[2], "report", "somebody else's");
    let guard = locks.mutex("report").lock()?;
    eventually("it is in the list", || {
        waiters_of(&servers[2], "report").len() == 1
    });

    panic_with(guard);

    eventually("it is not any more", || {
        waiters_of(&servers[2], "report").is_empty()
    });
    Ok(())
}
