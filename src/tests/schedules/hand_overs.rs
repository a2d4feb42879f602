//! A server hands the lock over: what it says of that meets what the calls and holds of the other client do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Section, World, hastily, join, ms, patiently, sleep_until, spawn};
use crate::engine::CancelHandle;
use crate::error::AcquireError;
use crate::lock::LockGuard;
use crate::manager::LockManager;
use crate::sys::checked;
use crate::wire::Kind;

const TTL: Duration = ms(5_000);
/// After that a hold whose keys have the life of what was handed over is extended.
const EXTENDED_AFTER: Duration = ms(50);
/// Longer than any thread needs, and shorter than that.
const A_MOMENT: Duration = ms(20);

/// Two managers that know the clocks of three servers, and a lock that the first of them has on all of these, at the time
/// [`A_MOMENT`].
fn taken() -> (World, [LockManager; 2], LockGuard) {
    let world = World::new(3);
    let managers = [world.manager(), world.manager()];
    for locks in &managers {
        drop(locks.mutex("b").try_lock().unwrap());
    }
    let guard = managers[0].mutex("a").try_lock().unwrap();
    sleep_until(A_MOMENT);
    (world, managers, guard)
}

/// A call has asked, and waits: twice that time has passed.
fn until_all_wait(world: &World) {
    sleep_until(A_MOMENT * 2 - ms(1));
    assert!(world.servers.iter().all(|it| it.is_waited_for()));
}

/// Servers run the release and the ask in any order, so that some grant, and others hand over.
#[test]
fn a_release_beside_the_ask_of_the_waiting_call_gives_it_the_lock() {
    for servers in [1, 3] {
        patiently(2_000, move || {
            let world = World::new(servers);
            let ours = world.manager();
            let theirs = world.manager();
            let section = Section::default();
            let guard = ours.mutex("a").try_lock().unwrap();
            let token = Arc::new(AtomicU64::new(0));
            let lock = theirs.mutex("a");
            let inside = section.clone();
            let won = Arc::clone(&token);
            let waiter = spawn("waiter", move || {
                let guard = lock.lock().unwrap();
                won.store(guard.fencing_token().get(), Ordering::Relaxed);
                inside.pass(&guard);
                guard.release().unwrap();
            });

            section.pass(&guard);
            let before = guard.fencing_token().get();
            guard.release().unwrap();

            waiter.join();
            assert_eq!(section.passed(), 2);
            assert!(before < token.load(Ordering::Relaxed), "a smaller token");
            assert!(checked::now() <= A_MOMENT, "it slept for too long");
            sleep_until(checked::now() + A_MOMENT);
            assert!(world.all_free(), "a key was left behind");
            world.end([ours, theirs]);
        });
    }
}

/// Each may be handed the lock by some servers and be granted it by others.
#[test]
fn competing_clients_get_the_lock_in_turn_and_leave_no_key() {
    hastily(1_000, || {
        let world = World::new(3);
        let managers = [world.manager(), world.manager(), world.manager()];
        let section = Section::default();
        let threads = managers.each_ref().map(|locks| {
            let lock = locks.mutex("a");
            let section = section.clone();
            spawn("looper", move || {
                for _ in 0..2 {
                    if let Ok(guard) = lock.try_lock_for(ms(400)) {
                        section.pass(&guard);
                        drop(guard);
                    }
                }
            })
        });

        join(threads);

        section.passed();
        let queues = managers
            .each_ref()
            .map(|locks| Arc::clone(&locks.engine.shared.queues));
        let journals = managers
            .each_ref()
            .map(|locks| Arc::clone(&locks.engine.shared.fanout.journal));
        let servers = world.end(managers);
        assert!(
            queues.iter().all(|it| it.is_empty()),
            "an owner was left behind"
        );
        // A server that did not run for longer than the ttl: see `Session::on_empty`.
        let given_up = journals
            .iter()
            .any(|it| it.counters.snapshot().connection_failures != 0);
        assert!(
            given_up || servers.iter().all(|it| it.locks == 0),
            "a key was left behind"
        );
    });
}

/// The call's time ends, or it is cancelled, at the very moment of the release: it has the lock, or nobody keeps a key for it.
#[test]
fn a_call_that_ends_during_its_hand_over_releases_the_lock() {
    for cancels in [false, true] {
        patiently(1_500, move || {
            let (world, [ours, theirs], guard) = taken();
            let cancel = CancelHandle::new();
            let lock = theirs.mutex("a").cancelled_by(&cancel);
            let waiter = spawn("waiter", move || {
                let won = if cancels {
                    lock.lock()
                } else {
                    lock.try_lock_for(A_MOMENT * 2)
                };
                match won {
                    Ok(guard) => guard.release().map(drop).unwrap(),
                    Err(AcquireError::Held { .. } | AcquireError::Cancelled) => {}
                    Err(other) => panic!("{other}"),
                }
            });
            until_all_wait(&world);
            let canceller = spawn("canceller", move || {
                if cancels {
                    cancel.cancel();
                }
            });
            if !cancels {
                sleep_until(A_MOMENT * 3);
            }

            guard.release().unwrap();

            waiter.join();
            canceller.join();
            // Less than the life of what was handed over.
            sleep_until(checked::now() + A_MOMENT);
            assert!(world.all_free(), "a key was kept for nobody");
            let queues = Arc::clone(&theirs.engine.shared.queues);
            world.end([ours, theirs]);
            assert!(queues.is_empty(), "an owner was left behind");
        });
    }
}

/// One server is late, and hands the lock over when the hold that two others have made is released.
#[test]
fn a_hold_released_before_its_last_hand_over_leaves_no_key() {
    patiently(2_000, || {
        let (world, [ours, theirs], guard) = taken();
        let lock = theirs.mutex("a");
        let late = A_MOMENT * 3;
        let held = Arc::new(AtomicBool::new(false));
        let released = Arc::new(Mutex::new(None));
        let has = Arc::clone(&held);
        let result = Arc::clone(&released);
        let waiter = spawn("waiter", move || {
            let guard = lock.lock().unwrap();
            has.store(true, Ordering::Relaxed);
            sleep_until(late);
            *result.lock().unwrap() = Some(guard.release());
        });
        until_all_wait(&world);
        world.servers[2].read_nothing_until(late);
        guard.release().unwrap();

        waiter.join();
        assert!(held.load(Ordering::Relaxed));
        let released = released.lock().unwrap().take().unwrap();
        assert!(released.is_ok(), "{released:?}");
        sleep_until(checked::now() + A_MOMENT);
        assert!(world.all_free(), "a key was left behind");
        let queues = Arc::clone(&theirs.engine.shared.queues);
        world.end([ours, theirs]);
        assert!(queues.is_empty(), "an owner was left behind");
    });
}

/// A lock that was handed over, and the world in which it was, 40 ms before it is extended.
fn handed_over(renew: bool) -> (World, [LockManager; 2], LockGuard) {
    let (world, [ours, theirs], guard) = taken();
    let won = Arc::new(Mutex::new(None));
    let lock = theirs.mutex("a").ttl(TTL).renew(renew);
    let wins = Arc::clone(&won);
    let waiter = spawn("waiter", move || {
        *wins.lock().unwrap() = Some(lock.lock().unwrap())
    });
    until_all_wait(&world);
    guard.release().unwrap();
    waiter.join();
    let guard = won.lock().unwrap().take().unwrap();
    (world, [ours, theirs], guard)
}

fn extensions(world: &World) -> Vec<usize> {
    world
        .servers
        .iter()
        .map(|it| it.count(Kind::Extend))
        .collect()
}

#[test]
fn a_handed_over_lock_is_soon_extended_to_its_full_ttl() {
    for renew in [true, false] {
        patiently(500, move || {
            let (world, managers, guard) = handed_over(renew);
            let won_at = checked::now();
            sleep_until(won_at + EXTENDED_AFTER - ms(1));
            assert_eq!(extensions(&world), [0; 3], "too early");
            let short = ms(1_000);
            assert!(
                world
                    .servers
                    .iter()
                    .all(|it| it.left("a").unwrap() <= short)
            );
            assert!(guard.remaining() <= short);

            sleep_until(won_at + EXTENDED_AFTER + ms(1));

            assert_eq!(extensions(&world), [1; 3]);
            // A lease without renewal lasts for its ttl from its start, and so do its keys.
            let passed = if renew { ms(0) } else { EXTENDED_AFTER };
            let long = TTL - passed - ms(2);
            assert!(world.servers.iter().all(|it| long <= it.left("a").unwrap()));
            assert!(ms(4_800) <= guard.remaining());
            sleep_until(won_at + ms(1_200));
            assert!(guard.is_valid());
            assert_eq!(extensions(&world), [1; 3], "once");
            guard.release().unwrap();
            world.end(managers);
        });
    }
}

#[test]
fn a_lock_is_extended_early_only_where_a_serving_server_lacks_it() {
    for is_lacking in [false, true] {
        patiently(500, move || {
            let world = World::new(3);
            let locks = world.manager();
            // All are connected.
            drop(locks.mutex("b").try_lock().unwrap());
            sleep_until(A_MOMENT);
            let began = checked::now();
            if is_lacking {
                world.servers[2].occupy("a", ms(30));
            }
            let guard = locks.mutex("a").ttl(TTL).try_lock().unwrap();

            sleep_until(began + EXTENDED_AFTER + A_MOMENT);

            let expected = usize::from(is_lacking);
            let found = extensions(&world);
            assert!(found[..2] == [expected; 2], "{found:?}");
            assert!(world.servers.iter().all(|it| it.left("a").is_some()));
            guard.release().unwrap();
            assert!(world.end([locks]).iter().all(|it| it.locks == 0));
        });
    }
}
