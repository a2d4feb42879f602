//! A held lock between its renewal, its end and its release.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{World, calm_down, hurry, ms, patiently, sleep_until, spawn, until};
use crate::error::{LostReason, ReleaseError};
use crate::sys::checked;
use crate::wire::Kind;

/// The ttl of these locks; they may be used for a little less.
const TTL: Duration = ms(600);
const USE: Duration = Duration::from_nanos(591_999_999);

/// The renewal is due at the very time of the release.
#[test]
fn behind_a_release_no_extension_is_queued() {
    patiently(8_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let guard = locks.mutex("a").ttl(TTL).try_lock().unwrap();
        let lost = guard.lost();
        sleep_until(ms(200));

        guard.release().unwrap();

        assert!(lost.recv().is_err(), "a released lock is not lost");
        assert!(world.all_free());
        assert_eq!(locks.stats().locks_lost, 0);
        // Nobody looks after it any more.
        sleep_until(ms(1_000));
        let seen = world.end([locks]);
        assert!(
            seen[0]
                .log
                .iter()
                .filter(|it| it.kind == Kind::Extend)
                .count()
                <= 1
        );
    });
}

/// A server has lost the key. The renewal finds that, at the very time of the release, and the key is set there again.
#[test]
fn behind_a_release_no_key_is_set_again() {
    patiently(3_000, || {
        let world = World::new(3);
        let locks = world.manager();
        let guard = locks.mutex("a").ttl(TTL).try_lock().unwrap();
        sleep_until(ms(190));
        world.servers[0].lose_locks();
        sleep_until(ms(200));

        guard.release().unwrap();

        let seen = world.end([locks]);
        assert!(seen.iter().all(|it| it.locks == 0), "a key was left behind");
    });
}

/// The server answers nothing when the renewal is due, and again before the lease ends.
#[test]
fn a_failed_extension_is_repeated_before_the_lease_ends() {
    patiently(1_500, || {
        let world = World::new(1);
        let locks = world.manager_with(|it| it.response_timeout(ms(50)));
        let guard = locks.mutex("a").ttl(TTL).try_lock().unwrap();
        sleep_until(ms(190));
        world.servers[0].read_nothing_until(ms(400));

        sleep_until(USE + ms(100));

        assert!(guard.is_valid(), "it was not extended again");
        assert_ne!(locks.stats().extensions_failed, 0);
        guard.release().unwrap();
        world.end([locks]);
    });
}

#[test]
fn a_loss_is_announced_once_and_stays_after_a_late_extension() {
    patiently(6_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let guard = Arc::new(locks.mutex("a").ttl(TTL).renew(false).try_lock().unwrap());
        let lost = guard.lost();
        let calls = Arc::new(AtomicUsize::new(0));
        let called = Arc::clone(&calls);
        guard.on_lost(move |_| {
            called.fetch_add(1, Ordering::Relaxed);
        });
        // The answer to the extension comes at the end of the lease.
        sleep_until(USE - ms(20));
        world.servers[0].read_nothing_until(USE - ms(1));
        hurry();
        let theirs = Arc::clone(&guard);
        let extended = Arc::new(AtomicBool::new(false));
        let extends = Arc::clone(&extended);
        let extender = spawn("extender", move || {
            extends.store(theirs.extend(TTL).is_ok(), Ordering::Relaxed)
        });
        let mut valid = true;
        for _ in 0..10 {
            let is_valid = guard.is_valid();
            assert!(valid || !is_valid, "a lost lock was held again");
            valid = is_valid;
        }
        calm_down();
        extender.join();
        sleep_until(USE + ms(200));

        let is_lost = !guard.is_valid();
        // In haste the end of the extension may have come as well.
        let extended = extended.load(Ordering::Relaxed);
        assert!(is_lost != extended || USE * 2 - ms(20) <= checked::now());
        until(|| lost.try_recv().is_ok() == is_lost);
        assert!(lost.try_recv().is_err(), "a loss was announced twice");
        assert_eq!(locks.stats().locks_lost, u64::from(is_lost));
        until(|| calls.load(Ordering::Relaxed) == usize::from(is_lost));
        drop(guard);
        world.end([locks]);
        assert_eq!(calls.load(Ordering::Relaxed), usize::from(is_lost));
    });
}

/// A lease ends at the very time of its release: its guard finds that, or the renewal thread, or both. Whoever does, it is
/// lost once, and everybody is told.
#[test]
fn h10_a_lease_that_ends_during_its_release_is_announced_once() {
    patiently(8_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let guard = locks.mutex("a").ttl(TTL).renew(false).try_lock().unwrap();
        let lost = guard.lost();
        let seen = Arc::new(Mutex::new(None));
        let told = Arc::clone(&seen);
        guard.on_lost(move |it| *told.lock().unwrap() = Some(it.reason));
        sleep_until(USE);

        let released = guard.release();

        assert!(
            matches!(&released, Err(ReleaseError::Lost(lost)) if lost.reason == LostReason::LeaseOver),
            "{released:?}"
        );
        // Whoever found it, its release is in line: what comes now comes behind it, though the key would last longer.
        drop(locks.mutex("a").try_lock().unwrap());
        let stats = locks.stats();
        assert_eq!((stats.locks_lost, stats.releases), (1, 1));
        until(|| lost.try_recv().map(|it| it.reason) == Ok(LostReason::LeaseOver));
        until(|| *seen.lock().unwrap() == Some(LostReason::LeaseOver));
        world.end([locks]);
    });
}

/// The server's clock is set forward while a lock is won, entered in the schedule, extended: whenever that is, a lock that
/// has expired by it is lost as soon as an answer shows the server's time, and no other is.
#[test]
fn c4_a_step_found_during_a_win_is_not_missed() {
    for renew in [false, true] {
        patiently(3_000, move || {
            let world = World::new(1);
            let locks = world.manager_with(|it| it.ttl(TTL));
            // From now on its clock is known.
            drop(locks.mutex("b").try_lock().unwrap());
            let theirs = locks.clone();
            let won = Arc::new(Mutex::new(None));
            let wins = Arc::clone(&won);
            let winner = spawn("winner", move || {
                *wins.lock().unwrap() = Some(theirs.mutex("a").renew(renew).try_lock().unwrap());
            });

            let expired = world.servers[0].step_forward(ms(1_000));
            drop(locks.mutex("b").try_lock().unwrap());

            winner.join();
            let guard = won.lock().unwrap().take().unwrap();
            let lost = guard.lost();
            // Before any renewal is due.
            sleep_until(ms(150));
            let lost = lost.try_recv().ok().map(|it| it.reason);
            assert_eq!(
                lost,
                expired.then_some(LostReason::Gone),
                "renewed: {renew}"
            );
            assert_eq!(guard.is_valid(), !expired);
            drop(guard);
            world.end([locks]);
        });
    }
}
