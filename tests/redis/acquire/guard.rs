//! What a guard does at its end.

use std::sync::mpsc;
use std::thread;

use crossbeam_channel::{RecvTimeoutError, TryRecvError};
use devnodes::{PATIENCE, Proxy, Servers, eventually};
use quorlock::{AcquireError, LostReason, WithError};

use crate::support::*;

#[test]
fn a_drop_waits_until_a_majority_has_confirmed() -> TestResult {
    let servers = Servers::start(3)?;
    let (proxies, urls) = proxies(&servers);
    let locks = connected(builder(urls).ttl(LONG).response_timeout(secs(60)), 3);
    let other = connected(builder(servers.urls()), 3);
    let guard = locks.mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);
    let commands = locks.stats().commands;

    proxies.iter().for_each(Proxy::hold_requests);
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
    assert!(servers.holders("report") == 1 && servers[2].exists("report"));
    join(dropping);
    proxies[2].release_requests();
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn e7_release_counts_confirming_nodes() -> TestResult {
    let (servers, locks) = start_connected(5, builder);

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
fn e2_a_release_deletes_no_foreign_key() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = manager(&servers);
    let guard = locks.mutex("report").renew(false).lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);

    // An operator, or our ttl, has made room for someone else.
    set_all(&servers, "report", "foreign");
    assert_eq!(reason(guard.release()), Err(LostReason::Gone));

    connect(&locks, 3);
    for server in &servers {
        assert_eq!(server.get("report").as_deref(), Some(&b"foreign"[..]));
    }
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
    assert_matches!(err, WithError::NotAcquired(AcquireError::NameReserved));
    Ok(())
}

#[test]
fn a_guard_outlives_its_manager_and_its_handle() -> TestResult {
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
            Err(RecvTimeoutError::Disconnected)
        );
    }
    assert_eq!(locks.stats().locks_lost, 0);
    Ok(())
}
