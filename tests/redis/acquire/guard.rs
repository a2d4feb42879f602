//! What a guard does at its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use crossbeam_channel::TryRecvError;
use devnodes::{PATIENCE, Servers, eventually};
use quorlock::{AcquireError, ExtendError, Lost, ReleaseError, WithError};

use crate::support::*;

#[test]
fn a_lock_is_free_for_anyone_when_its_guard_has_been_dropped() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (manager(&servers), manager(&servers));

    for _ in 0..100 {
        drop(first.mutex("report").ttl(LONG).try_lock()?);
        drop(second.mutex("report").ttl(LONG).try_lock()?);
    }

    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn dropping_waits_until_a_majority_has_confirmed() -> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let locks = connected(builder(urls).ttl(LONG).response_timeout(secs(60)), 3);
    let other = connected(builder(servers.urls()), 3);
    let guard = locks.mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);
    let commands = locks.stats().commands;

    for proxy in &proxies {
        proxy.hold_requests();
    }
    let (sender, dropped) = mpsc::channel();
    let dropping = thread::spawn(move || {
        drop(guard);
        sender.send(()).unwrap();
    });
    eventually("the release is on its way", || {
        commands + 3 <= locks.stats().commands
    });
    proxies[0].release_requests();
    eventually("one node has released", || !servers[0].exists("report"));
    // Time goes by, in which that is received: another manager has a hundred rounds.
    for _ in 0..100 {
        drop(other.mutex("other").try_lock()?);
    }
    assert_eq!(
        dropped.try_recv(),
        Err(mpsc::TryRecvError::Empty),
        "one node is no majority"
    );
    proxies[1].release_requests();

    dropped
        .recv_timeout(PATIENCE)
        .expect("the last handle is dropped");
    assert_eq!(
        (servers.holders("report"), servers[2].exists("report")),
        (1, true)
    );
    join(dropping);
    proxies[2].release_requests();
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn e7_release_says_how_many_nodes_confirmed() -> TestResult {
    let servers = Servers::start(5)?;
    let locks = connected(builder(servers.urls()), 5);

    let released = locks.mutex("report").lock()?.release()?;
    assert!((3..=5).contains(&released.confirmed), "{released:?}");
    assert_eq!(released.nodes, 5);

    servers[0].kill()?;
    servers[1].kill()?;
    let released = lock_in_the_end(&locks, "report").release()?;
    assert_eq!((released.confirmed, released.nodes), (3, 5));
    assert_eq!(locks.stats().releases, 3);
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn e2_a_release_deletes_nothing_that_is_not_ours() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = manager(&servers);
    let guard = locks.mutex("report").renew(false).lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);

    // An operator, or our ttl, has made room for someone else.
    for server in &servers {
        set(server, "report", "foreign");
    }
    assert_eq!(guard.release(), Err(ReleaseError::Lost(Lost::Gone)));

    connect(&locks, 3);
    for server in &servers {
        assert_eq!(server.get("report").as_deref(), Some(&b"foreign"[..]));
    }
    Ok(())
}

#[test]
fn f3_a_guard_dropped_by_a_panic_releases() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (manager(&servers), manager(&servers));

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = first.mutex("report").ttl(LONG).lock().unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    }));

    assert!(panicked.is_err());
    drop(second.mutex("report").try_lock()?);
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn f3_run_releases_when_its_closure_panics_and_lets_the_panic_go_on() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (manager(&servers), manager(&servers));

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _ = first
            .mutex("report")
            .ttl(LONG)
            .with(|_| std::panic::resume_unwind(Box::new("on purpose")));
    }));

    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"on purpose"));
    drop(second.mutex("report").try_lock()?);
    Ok(())
}

#[test]
fn run_gives_the_closures_value_and_releases() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (manager(&servers), manager(&servers));

    let value = first.mutex("report").with(|guard| {
        assert!(guard.is_valid());
        assert_held(&second.mutex("report").try_lock().unwrap_err());
        guard.fencing_token()
    })?;

    assert!(value < second.mutex("report").try_lock()?.fencing_token());
    let err = first
        .mutex("quorlock:x")
        .with(|_| unreachable!("not acquired"))
        .map(|(): ()| ())
        .unwrap_err();
    assert!(
        matches!(err, WithError::NotAcquired(AcquireError::NameReserved)),
        "{err:?}"
    );
    Ok(())
}

#[test]
fn run_says_that_the_lock_was_lost_under_the_closure_and_keeps_its_value() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = builder(servers.urls())
        .response_timeout(ms(250))
        .ttl(secs(1))
        .build()?;

    let err = locks
        .mutex("report")
        .with(|guard| {
            for server in &servers {
                del(server, "report");
            }
            announced(&guard.lost());
            42
        })
        .unwrap_err();

    let WithError::Lost { lost, value } = err else {
        panic!("{err:?}")
    };
    assert_eq!(value, 42);
    assert!(matches!(lost, Lost::Gone | Lost::Expired), "{lost:?}");
    Ok(())
}

#[test]
fn a_guard_outlives_its_manager_and_its_description() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = builder(servers.urls()).ttl(LONG).build()?;
    let other = manager(&servers);

    let report = locks.mutex("report");
    let guard = report.lock()?;
    drop(locks);
    drop(report);

    assert!(guard.is_valid());
    guard.extend(secs(700))?;
    assert_held(&other.mutex("report").try_lock().unwrap_err());
    guard.release()?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a_guard_that_was_the_managers_last_handle_still_releases_everywhere() -> TestResult {
    let servers = Servers::start(3)?;
    for _ in 0..20 {
        let locks = builder(servers.urls()).ttl(LONG).build()?;
        let guard = locks.mutex("report").lock()?;
        drop(locks);
        drop(guard);
        // Also on the nodes that the drop did not wait for.
        nothing_is_left(&servers);
    }
    Ok(())
}

#[test]
fn the_end_of_a_manager_does_not_wait_for_its_grace_once_all_is_answered() -> TestResult {
    let servers = Servers::start(3)?;
    for turn in 0..10 {
        // Longer than the test's patience.
        let locks = builder(servers.urls())
            .ttl(LONG)
            .shutdown_grace(secs(60))
            .build()?;
        let guard = locks.mutex("report").lock()?;
        join(thread::spawn(move || {
            if turn % 2 == 0 {
                drop(guard);
                locks.shutdown();
            } else {
                drop(locks);
                drop(guard);
            }
        }));
        nothing_is_left(&servers);
    }
    Ok(())
}

#[test]
fn a_guard_can_be_dropped_by_another_thread() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (manager(&servers), manager(&servers));
    let guard = first.mutex("report").ttl(LONG).lock()?;

    join(thread::spawn(move || {
        assert!(guard.is_valid());
        drop(guard);
    }));

    drop(second.mutex("report").try_lock()?);
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a_release_closes_the_announcement_of_a_loss_without_a_message() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = manager(&servers);
    let guard = locks.mutex("report").lock()?;
    let (first, second) = (guard.lost(), guard.lost());
    let (sender, called) = crossbeam_channel::bounded(1);
    guard.on_lost(move |lost| sender.send(lost).unwrap());
    assert_eq!(first.try_recv(), Err(TryRecvError::Empty));

    guard.release()?;

    for lost in [&*first, &*second, &called] {
        assert_eq!(
            lost.recv_timeout(PATIENCE),
            Err(crossbeam_channel::RecvTimeoutError::Disconnected)
        );
    }
    assert_eq!(locks.stats().locks_lost, 0);
    Ok(())
}

#[test]
fn f4_a_forgotten_guard_ends_at_the_maximum_hold() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = builder(servers.urls())
        .response_timeout(ms(100))
        .ttl(ms(600))
        .max_hold(ms(900))
        .build()?;
    let other = manager(&servers);

    let guard = lock_in_the_end(&locks, "report");
    std::mem::forget(guard);

    eventually("it is lost", || locks.stats().locks_lost == 1);
    drop(other.mutex("report").lock()?);
    Ok(())
}

#[test]
fn an_expired_guard_is_released_at_once_and_says_that_it_was_lost() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = builder(servers.urls())
        .response_timeout(ms(50))
        .ttl(ms(200))
        .renew(false)
        .build()?;

    let guard = lock_in_the_end(&locks, "report");
    let next = manager(&servers).mutex("report").lock()?;

    assert!(!guard.is_valid());
    assert_eq!(guard.check(), Err(Lost::LeaseOver));
    assert_eq!(
        guard.extend(ms(200)),
        Err(ExtendError::Lost(Lost::LeaseOver))
    );
    assert_eq!(guard.release(), Err(ReleaseError::Lost(Lost::LeaseOver)));
    // The successor's key is none of our business.
    assert!(next.is_valid() && 2 <= servers.holders("report"));
    next.release()?;
    Ok(())
}
