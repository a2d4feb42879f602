//! Waiting for a lock that someone else holds, and ways to end that.

use std::thread;
use std::time::{Duration, Instant};

use devnodes::{Servers, eventually};
use quorlock::{AcquireError, CancelHandle, LostReason};

use crate::support::*;
use crate::waiting::lists::wait_in_thread;

#[test]
fn a_limited_wait_ends_as_held_and_not_early() -> TestResult {
    let servers = Servers::start(3)?;
    let first = manager(&servers);
    // It asks so often that a busy machine finds the time for two attempts.
    let second = connected(builder(servers.urls()).retry_delay(ms(1), ms(2)), 3);
    let _held = first.mutex("report").lock()?;

    let began = Instant::now();
    let err = second.mutex("report").try_lock_for(secs(1)).unwrap_err();

    assert!(secs(1) <= began.elapsed());
    let AcquireError::Held { waited, .. } = err else {
        panic!("{err:?}")
    };
    assert!(secs(1) <= waited);
    assert!(2 <= second.stats().rounds_held, "it tried once only");
    Ok(())
}

#[test]
fn a_cancelled_wait_ends_also_in_the_middle_of_a_pause() -> TestResult {
    let servers = Servers::start(3)?;
    let first = manager(&servers);
    let second = builder(servers.urls())
        .retry_delay(secs(60), secs(60))
        .build()?;
    // A pause ends when the keys can have expired, so they must not.
    set_all(&servers, "report", "foreign");
    let cancel = CancelHandle::new();

    let waiters = repeat(3, || {
        wait_in_thread(second.mutex("report").cancelled_by(&cancel))
    });
    let bystander = wait_in_thread(first.mutex("report"));
    // The others stand in line behind the first.
    eventually("all wait", || second.stats().waiting == 3);
    eventually("two were refused", || {
        1 <= second.stats().rounds_held && 1 <= first.stats().rounds_held
    });
    cancel.cancel();

    for waiter in waiters {
        assert_eq!(join(waiter).unwrap_err(), AcquireError::Cancelled);
    }
    assert!(cancel.is_cancelled());
    let other = second.mutex("other").cancelled_by(&cancel);
    assert_eq!(other.lock().unwrap_err(), AcquireError::Cancelled);
    assert!(!bystander.is_finished());
    for server in &servers {
        assert_eq!(server.get("report").as_deref(), Some(&b"foreign"[..]));
        del(server, "report");
    }
    drop(join(bystander)?);
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a_shutdown_ends_waits_and_loses_and_releases_held_locks() -> TestResult {
    let servers = Servers::start(3)?;
    let (first, second) = (manager(&servers), manager(&servers));
    let held = first.mutex("held elsewhere").lock()?;
    let guard = second.mutex("report").ttl(LONG).lock()?;
    let lost = guard.lost();
    let mut waiters = repeat(3, || wait_in_thread(second.mutex("held elsewhere")));
    waiters.extend(repeat(10, || wait_in_thread(second.mutex("report"))));
    eventually("all wait, and the first was refused", || {
        second.stats().waiting == 13 && 1 <= second.stats().rounds_held
    });

    second.shutdown();

    for waiter in waiters {
        assert_eq!(join(waiter).unwrap_err(), AcquireError::ShutDown);
    }
    assert_eq!(second.stats().waiting, 0);
    assert_eq!(announced(&lost), LostReason::ShutDown);
    assert_eq!(reason(guard.check()), Err(LostReason::ShutDown));
    assert_eq!(guard.remaining(), Duration::ZERO);
    servers.wait_until_free("report")?;
    let err = second.mutex("report").try_lock().unwrap_err();
    assert_eq!(err, AcquireError::ShutDown);
    let err = second.mutex("other").lock().unwrap_err();
    assert_eq!(err, AcquireError::ShutDown);
    second.shutdown();
    drop(guard);

    // Others are not concerned.
    assert!(held.is_valid());
    drop(first.mutex("report").try_lock()?);
    Ok(())
}

#[test]
fn a_lock_won_during_the_shutdown_is_released_and_announced() -> TestResult {
    let servers = Servers::start(3)?;
    for turn in 0..10 {
        let locks = manager(&servers);
        connect(&locks, 2);
        let takers: Vec<_> = (0..3)
            .map(|i| {
                let lock = locks.mutex(format!("of {turn} {i}")).ttl(LONG);
                thread::spawn(move || {
                    loop {
                        match lock.try_lock() {
                            // Won before, during or after: the guard must hear of the end.
                            Ok(guard) if reason(guard.check()) == Err(LostReason::ShutDown) => {
                                return;
                            }
                            Ok(_) => {}
                            Err(AcquireError::ShutDown) => return,
                            // The workers have ended under the round.
                            Err(AcquireError::NoQuorum { .. }) => {}
                            Err(err) => panic!("{err:?}"),
                        }
                    }
                })
            })
            .collect();
        let won = locks.stats().rounds_won;
        eventually("the takers are at it", || {
            won + 20 < locks.stats().rounds_won
        });
        locks.shutdown();
        let kept = locks.mutex("after").try_lock();
        assert_eq!(kept.map(drop), Err(AcquireError::ShutDown));

        takers.into_iter().for_each(join);
        nothing_is_left(&servers);
    }
    Ok(())
}

#[test]
fn locks_in_renewal_during_a_shutdown_are_announced_as_lost() -> TestResult {
    let servers = Servers::start(3)?;
    for turn in 0..6 {
        let locks = with_ttl(servers.urls(), ms(900)).build()?;
        connect(&locks, 3);
        let guards: Vec<_> = (0..60)
            .map(|i| lock_in_the_end(&locks, &format!("of {turn} {i}")))
            .collect();
        let lost: Vec<_> = guards.iter().map(|guard| guard.lost()).collect();

        let commands = locks.stats().commands;
        let is_asked = || {
            thread::sleep(Duration::from_micros(50));
            locks.stats().commands != commands
        };
        // Closely, to be there before all have been asked.
        eventually("they are being renewed", || (0..1_000).any(|_| is_asked()));
        locks.shutdown();

        for lost in lost {
            announced(&lost);
        }
        drop(guards);
        nothing_is_left(&servers);
    }
    Ok(())
}
