//! The workers' channels, their sleep, and what they write.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{
    Section, World, calm_down, hastily, hurry, join, ms, patiently, spawn, take_each, until,
};
use crate::error::{AcquireError, NodeAnswer, NodeFailure, ReleaseError};
use crate::manager::LockManager;
use crate::sys::checked;
use crate::wire::Script;

/// Four at once: more than may be under way on a connection, so some wait for their turn in the channel.
#[test]
fn a_sleeping_worker_is_woken_by_each_command() {
    patiently(4_000, || {
        let world = World::new(1);
        let locks = world.manager();

        take_each(&locks, &["a", "b", "c", "d"]);

        assert_eq!(checked::now(), ms(0), "somebody slept for too long");
        assert!(world.all_free());
        world.end([locks]);
    });
}

#[test]
fn bytes_that_a_full_socket_refuses_are_written_later() {
    patiently(3_000, || {
        let world = World::with_room(1, 150);
        let locks = world.manager();

        take_each(&locks, &["a", "b"]);

        assert_eq!(checked::now(), ms(0), "somebody slept for too long");
        assert!(world.all_free());
        world.end([locks]);
    });
}

#[test]
fn despite_timeouts_a_release_follows_its_acquire_and_two_never_hold() {
    hastily(4_000, || {
        let world = World::new(2);
        let locks = world.manager();
        let section = Section::default();
        let take = |_| {
            let lock = locks.mutex("a");
            let section = section.clone();
            spawn("caller", move || {
                if let Ok(guard) = lock.renew(false).try_lock() {
                    section.pass(&guard);
                    drop(guard);
                }
            })
        };

        join((0..2).map(take).collect::<Vec<_>>());

        section.passed();
        let servers = world.end([locks.clone()]);
        // A server that does not run for so long that its connection is given up may run an acquire that it finds on it
        // after the release, which came on the next: see `Session::on_empty`.
        let given_up = locks.stats().connection_failures != 0;
        assert!(
            given_up || servers.iter().all(|it| it.locks == 0),
            "a key was left behind"
        );
    });
}

/// Its answers lie in the socket, or are read and not handed out yet: whoever would do that is not scheduled for longer
/// than the response timeout.
#[test]
fn h6_a_server_with_unread_answers_still_gets_commands() {
    patiently(4_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let guards = Arc::new(Mutex::new(Vec::new()));
        // From now on it is connected.
        let first = locks.mutex("a").renew(false).try_lock().unwrap();
        hurry();
        let take = |name: &'static str| {
            let lock = locks.mutex(name).renew(false);
            let guards = Arc::clone(&guards);
            spawn(name, move || {
                let guard = lock.try_lock();
                guards.lock().unwrap().extend(guard.ok());
            })
        };
        join(["b", "c"].map(take));
        // Time may jump too far: a connection that is given up leaves commands without an answer, and after a minute the
        // session asks something that is not counted here.
        let is_lost = || locks.stats().connection_failures != 0 || ms(60_000) <= checked::now();
        until(|| is_lost() || world.servers[0].answered() == locks.stats().commands);

        let end = locks.mutex("d").renew(false).try_lock();

        if let Err(err) = &end
            && !is_lost()
        {
            let stalled = NodeAnswer::Failed(NodeFailure::Stalled);
            assert!(err.nodes().iter().all(|it| it.answer != stalled), "{err:?}");
        }
        calm_down();
        drop((first, end));
        guards.lock().unwrap().clear();
        world.end([locks]);
    });
}

/// The release needs no source: it would be before an acquire that is sent again too late.
#[test]
fn an_acquire_is_sent_again_with_its_source_only_while_its_round_is_open() {
    hastily(4_000, || {
        let world = World::new(1);
        let locks = world.manager_with(|it| it.outage_timeout(Duration::from_secs(3_600)));
        world.servers[0].forget(&[Script::Acquire]);
        let take = |name: &'static str| {
            let lock = locks.mutex(name);
            spawn(name, move || drop(lock.try_lock()))
        };

        join(["a", "b"].map(take));

        calm_down();
        // Behind all that is to be sent again.
        locks.mutex("c").lock().unwrap().release().unwrap();
        // What lay in a connection that was given up, because time has jumped too far, may be run behind its release.
        let is_lost = locks.stats().connection_failures != 0;
        let servers = world.end([locks]);
        assert!(
            is_lost || servers.iter().all(|it| it.locks == 0),
            "a key was left behind"
        );
    });
}

#[test]
fn lost_scripts_of_a_server_delay_no_lock() {
    patiently(3_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let lock = locks.mutex("a");
        let holder = spawn("holder", move || {
            lock.try_lock().unwrap().release().unwrap();
        });

        world.servers[0].forget(&Script::ALL);

        holder.join();
        assert_eq!(checked::now(), ms(0), "somebody slept for too long");
        assert!(world.all_free());
        world.end([locks]);
    });
}

#[test]
fn h14_a_suspend_while_answers_are_owed_is_no_step_of_a_nodes_clock() {
    patiently(1_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let lock = locks.mutex("a");
        // Too late, if the machine was suspended in between.
        let taker = spawn("taker", move || drop(lock.try_lock()));

        checked::suspend(ms(3_600_000));

        taker.join();
        locks.mutex("b").lock().unwrap().release().unwrap();
        assert_eq!(locks.stats().clock_steps, 0);
        world.end([locks]);
    });
}

#[test]
fn a_release_lost_with_its_connection_is_sent_on_the_next() {
    patiently(4_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let take = |name: &'static str| {
            let lock = locks.mutex(name);
            spawn(name, move || drop(lock.try_lock()))
        };
        let threads = ["a", "b"].map(take);

        world.servers[0].hang_up();

        join(threads);
        // On a connection that works, behind everything that was left from the one that broke.
        locks.mutex("c").lock().unwrap().release().unwrap();
        // What lay in a connection that was given up, because time has jumped too far, may be run behind its release.
        let is_lost = locks.stats().connection_failures != 0;
        let servers = world.end([locks]);
        assert!(
            is_lost || servers.iter().all(|it| it.locks == 0),
            "a key was left behind"
        );
    });
}

/// A call that came too late for the shutdown to wait for it would find no workers.
#[test]
fn a_shutdown_waits_for_a_call_or_the_call_is_refused() {
    patiently(8_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let lock = locks.mutex("a");
        let caller = spawn("caller", move || match lock.try_lock() {
            Ok(guard) => drop(guard),
            Err(AcquireError::ShutDown) => {}
            Err(other) => panic!("{other}"),
        });

        locks.shutdown();

        caller.join();
        let servers = world.end([locks]);
        assert!(
            servers.iter().all(|it| it.locks == 0),
            "a key was left behind"
        );
    });
}

/// What is under way goes on to its end, what comes later is refused, and what was held is released.
#[test]
fn a_shutdown_ends_all_calls_and_leaves_no_key() {
    patiently(4_000, || {
        let world = World::new(2);
        let locks = world.manager();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let take = |name: &'static str| {
            let lock = locks.mutex(name);
            let kept = Arc::clone(&kept);
            spawn(name, move || match lock.try_lock() {
                Ok(guard) if name == "a" => kept.lock().unwrap().push(guard),
                Ok(guard) => match guard.release() {
                    Ok(_) | Err(ReleaseError::Lost(_)) => {}
                    Err(other) => panic!("{other}"),
                },
                Err(AcquireError::ShutDown) => {}
                Err(other) => panic!("{other}"),
            })
        };
        let threads = ["a", "b", "c"].map(take);

        locks.shutdown();

        join(threads);
        assert!(checked::now() < ms(1_000), "the grace was not needed");
        let servers = world.end([locks]);
        assert!(
            servers.iter().all(|it| it.locks == 0),
            "a key was left behind"
        );
        assert!(kept.lock().unwrap().iter().all(|it| !it.is_valid()));
        kept.lock().unwrap().clear();
    });
}
