//! Calls of one manager that wait for the same lock.

use std::sync::{Arc, Mutex};

use super::{
    Section, World, call, calm_down, hastily, join, ms, patiently, sleep_until, spawn, until,
};
use crate::engine::CancelHandle;
use crate::error::AcquireError;
use crate::sys::checked;
use crate::sys::checked::set_haste;

#[test]
fn every_queued_call_gets_the_lock_at_its_release() {
    patiently(4_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let section = Section::default();
        let take = |name| {
            let lock = locks.mutex("a");
            let section = section.clone();
            spawn(name, move || {
                let guard = lock.lock().unwrap();
                section.pass(&guard);
                guard.release().unwrap();
            })
        };

        join(["first", "second", "third"].map(take));

        assert_eq!(section.passed(), 3);
        assert_eq!(checked::now(), ms(0), "somebody slept for too long");
        assert!(world.all_free());
        world.end([locks]);
    });
}

/// Each permit that is given back goes to the first in line, whatever that is doing.
#[test]
fn every_queued_call_gets_a_permit_at_its_release() {
    for permits in [1, 2] {
        patiently(3_000, move || {
            let world = World::new(1);
            let locks = world.manager();
            let inside = Arc::new(Mutex::new(0));
            let take = |name| {
                let lock = locks.semaphore("a", permits);
                let inside = Arc::clone(&inside);
                spawn(name, move || {
                    let permit = lock.acquire().unwrap();
                    *inside.lock().unwrap() += 1;
                    checked::point();
                    assert!(*inside.lock().unwrap() <= permits);
                    *inside.lock().unwrap() -= 1;
                    permit.release().unwrap();
                })
            };

            join(["first", "second", "third", "fourth"].map(take));

            assert_eq!(checked::now(), ms(0), "somebody slept for too long");
            assert!(world.all_free());
            world.end([locks]);
        });
    }
}

/// The one that is cancelled may be first in line, be handed the lock right now, or have it.
#[test]
fn a_call_cancelled_during_its_hand_over_delays_no_other_call() {
    patiently(5_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let section = Section::default();
        let cancel = CancelHandle::new();
        let guard = locks.mutex("a").lock().unwrap();
        let threads = [Some(&cancel), None].map(|it| call(&locks, "a", &section, it));
        let canceller = spawn("canceller", move || cancel.cancel());

        guard.release().unwrap();

        join(threads);
        canceller.join();
        assert!(1 <= section.passed());
        assert_eq!(checked::now(), ms(0), "somebody slept for too long");
        assert!(world.all_free());
        world.end([locks]);
    });
}

/// Another manager holds the lock, so that nobody but the nodes tells of its release.
#[test]
fn a_cancelled_call_leaves_the_lists_and_keeps_the_next_call_on_them() {
    patiently(5_000, || {
        let world = World::new(1);
        let elsewhere = world.manager();
        let locks = world.manager();
        let guard = elsewhere.mutex("a").lock().unwrap();
        let cancel = CancelHandle::new();
        let lock = locks.mutex("a").cancelled_by(&cancel);
        let cancelled = spawn("cancelled", move || assert!(lock.lock().is_err()));
        until(|| world.servers[0].is_waited_for());
        let lock = locks.mutex("a");
        let patient = spawn("patient", move || drop(lock.lock().unwrap()));

        cancel.cancel();
        cancelled.join();
        // Nobody else will be.
        until(|| world.servers[0].is_waited_for());
        guard.release().unwrap();

        patient.join();
        assert_eq!(checked::now(), ms(0), "it was not told");
        world.end([elsewhere, locks]);
    });
}

/// The server reads nothing for about as long as calls are patient, so that some of them get the lock.
#[test]
fn h8_calls_that_give_up_in_an_outage_leave_no_ticket_and_no_key() {
    hastily(2_000, || {
        let world = World::new(1);
        let locks = world.manager_with(|it| it.outage_timeout(ms(150)));
        let section = Section::default();
        world.servers[0].read_nothing_until(ms(300));
        let take = |name| {
            let lock = locks.mutex("a").renew(false);
            let section = section.clone();
            spawn(name, move || match lock.lock() {
                Ok(guard) => section.pass(&guard),
                Err(AcquireError::NoQuorum { .. } | AcquireError::TooLate { .. }) => {}
                Err(other) => panic!("{other}"),
            })
        };

        join(["first", "second", "third"].map(take));

        section.passed();
        let queues = Arc::clone(&locks.engine.shared.queues);
        let journal = Arc::clone(&locks.engine.shared.fanout.journal);
        let servers = world.end([locks]);
        assert!(queues.is_empty(), "a line was left behind");
        // A server that did not run for longer than the ttl: see `Session::on_empty`.
        let given_up = || journal.counters.snapshot().connection_failures != 0;
        assert!(
            servers.iter().all(|it| it.locks == 0) || given_up(),
            "a key was left behind"
        );
    });
}

#[test]
fn deadlines_and_hand_overs_leave_no_ticket_and_no_key() {
    hastily(4_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let section = Section::default();
        let take = |(name, patience)| {
            let lock = locks.mutex("a").renew(false);
            let section = section.clone();
            spawn(name, move || {
                if let Ok(guard) = lock.try_lock_for(ms(patience)) {
                    section.pass(&guard);
                    drop(guard);
                }
            })
        };

        let waiters = [("hasty", 50), ("slow", 200), ("slower", 400)].map(take);
        // Beside the line: it takes the lock when it can, and hands it to the first in line.
        let lock = locks.mutex("a").renew(false);
        let theirs = section.clone();
        let passer_by = spawn("passer-by", move || {
            for _ in 0..3 {
                if let Ok(guard) = lock.try_lock() {
                    theirs.pass(&guard);
                }
            }
        });

        join(waiters);
        passer_by.join();
        section.passed();
        let queues = Arc::clone(&locks.engine.shared.queues);
        let servers = world.end([locks.clone()]);
        assert!(queues.is_empty(), "a line was left behind");
        // A server that did not run for longer than the ttl: see `Session::on_empty`.
        let given_up = locks.stats().connection_failures != 0;
        assert!(
            given_up || servers.iter().all(|it| it.locks == 0),
            "a key was left behind"
        );
    });
}

/// Time jumps at any step, so that a lease may end at every point of its call: before the call has noted it, while the
/// call returns, and while its guard is dropped.
#[test]
fn h2_a_hold_lost_at_any_point_of_its_call_leaves_no_queue() {
    hastily(2_000, || {
        let world = World::new(1);
        let locks = world.manager_with(|it| it.response_timeout(ms(25)).ttl(ms(100)));
        set_haste(Some(10));
        let take = |(name, waits)| {
            let lock = locks.mutex("a");
            spawn(name, move || {
                for _ in 0..2 {
                    drop(if waits {
                        lock.try_lock_for(ms(200))
                    } else {
                        lock.try_lock()
                    });
                }
            })
        };

        join([("waits", true), ("waits, too", true), ("tries", false)].map(take));
        calm_down();

        let queues = Arc::clone(&locks.engine.shared.queues);
        // Whoever has ended a hold may still be about to say so.
        sleep_until(checked::now() + ms(300));
        assert!(queues.is_empty(), "a line was left behind");
        // In haste a login may have timed out, and the outage lasts until the next one.
        while let Err(err) = locks.mutex("a").lock() {
            assert!(matches!(err, AcquireError::NoQuorum { .. }), "{err}");
            sleep_until(checked::now() + ms(300));
        }
        world.end([locks]);
    });
}
