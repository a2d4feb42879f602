//! A server's record changes while threads lock, extend and release: their commands wait until the server is synced, and rounds
//! end before that.

use std::time::Duration;

use super::server::Server;
use super::{World, hastily, join, ms, patiently, spawn, until};
use crate::lock::LockGuard;
use crate::manager::LockManager;
use crate::sys::checked::{self, OwnThread};

/// Longer than any of these runs: a key that is gone was deleted.
const TTL: Duration = ms(100_000);
/// No call waits for so long.
const LATE: Duration = ms(10_000);

fn manager(world: &World) -> LockManager {
    let locks = world.manager_with(|it| it.ttl(TTL).max_ttl(TTL).response_timeout(LATE));
    // From now on all are connected and synced.
    drop(locks.mutex("c").try_lock().unwrap());
    locks
}

/// A thread for each name, which does something with the lock if it gets it.
fn threads(locks: &LockManager, use_lock: fn(LockGuard)) -> [OwnThread; 2] {
    ["a", "b"].map(|name| {
        let lock = locks.mutex(name).renew(false);
        spawn(name, move || lock.try_lock().into_iter().for_each(use_lock))
    })
}

/// An answer that nobody gets would cost a response timeout.
#[test]
fn h27_commands_that_meet_a_new_record_are_answered_after_the_sync() {
    patiently(2_000, || {
        let world = World::new(1);
        let locks = manager(&world);
        let threads = ["a", "b"].map(|name| {
            let lock = locks.mutex(name).renew(false);
            spawn(name, move || {
                let guard = lock.try_lock().unwrap();
                guard.extend(TTL).unwrap();
                guard.release().unwrap();
            })
        });

        world.servers[0].lose_record();

        join(threads);
        assert_eq!(checked::now(), ms(0), "an answer was lost");
        let seen = world.end([locks]);
        assert_eq!(seen[0].locks, 0, "a key was left behind");
    });
}

/// Two servers decide, and the third is synced meanwhile. [`World::end`] compares the order of commands.
#[test]
fn h27_a_command_that_waited_for_a_sync_is_not_sent_behind_its_release() {
    let extended = |guard: LockGuard| {
        let _ = guard.extend(TTL);
        let _ = guard.release();
    };
    for (change, use_lock) in [
        (Server::lose_record as fn(&Server), drop as fn(LockGuard)),
        (Server::lose_all, extended),
    ] {
        patiently(2_000, move || {
            let world = World::new(3);
            let locks = manager(&world);
            let threads = threads(&locks, use_lock);

            change(&world.servers[0]);

            join(threads);
            assert!(checked::now() < LATE, "an answer was lost");
            let seen = world.end([locks]);
            assert!(seen.iter().all(|it| it.locks == 0), "a key was left behind");
        });
    }
}

/// Rounds run into their timeouts while the server is synced.
#[test]
fn h27_rounds_that_time_out_while_a_server_is_synced_leave_no_key() {
    hastily(1_000, || {
        let world = World::new(1);
        let locks = world.manager_with(|it| it.ttl(TTL).max_ttl(TTL).response_timeout(ms(50)));
        let threads = threads(&locks, drop);

        world.servers[0].lose_record();

        join(threads);
        let seen = world.end([locks]);
        // A connection is given up only when the keys of its commands have expired. The server can run its last acquire after that.
        if checked::now() < TTL {
            assert_eq!(seen[0].locks, 0, "a key was left behind");
        }
    });
}

/// The connection ends while commands wait for a sync, or before or after that.
#[test]
fn h27_commands_that_wait_for_a_sync_fail_with_the_connection() {
    patiently(3_000, || {
        let world = World::new(1);
        let locks = manager(&world);
        world.servers[0].lose_record();
        let threads = threads(&locks, drop);
        until(|| world.servers[0].has_answered_changed());

        world.servers[0].hang_up();

        join(threads);
        assert!(checked::now() < LATE, "an answer was lost");
        // On a connection that works, behind everything that was left from the one that broke.
        locks.mutex("c").lock().unwrap().release().unwrap();
        let seen = world.end([locks]);
        assert_eq!(seen[0].locks, 0, "a key was left behind");
    });
}
