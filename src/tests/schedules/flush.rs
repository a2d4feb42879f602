//! Who writes, and who reads: callers give commands and flush them, the worker alone reads.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Server, World, calm_down, hastily, join, ms, patiently, sleep_until, spawn, take_each, until,
};
use crate::engine::CancelHandle;
use crate::engine::round::{NodeQuery, query_many};
use crate::error::AcquireError;
use crate::manager::LockManager;
use crate::sys::checked::{self, OwnThread};
use crate::wire::Command;

/// Longer than any thread needs.
const A_MOMENT: Duration = ms(4);

#[test]
fn a_waiter_gets_a_message_of_a_release_by_another_manager() {
    patiently(4_000, || {
        let world = World::new(1);
        let ours = world.manager();
        let theirs = world.manager();
        let guard = ours.mutex("a").try_lock().unwrap();
        let lock = theirs.mutex("a");
        let waiter = spawn("waiter", move || {
            lock.lock().unwrap().release().unwrap();
        });

        guard.release().unwrap();

        waiter.join();
        assert_eq!(checked::now(), ms(0), "the notice lay unread");
        assert!(world.all_free());
        world.end([ours, theirs]);
    });
}

/// While one waits, others of the same manager lock something else.
#[test]
fn calls_beside_a_waiter_get_their_answers() {
    patiently(4_000, || {
        let world = World::new(2);
        let ours = world.manager();
        let theirs = world.manager();
        let guard = ours.mutex("a").try_lock().unwrap();
        let cancel = CancelHandle::new();
        let lock = theirs.mutex("a").cancelled_by(&cancel);
        let waiter = spawn("waiter", move || match lock.lock() {
            Ok(guard) => drop(guard),
            Err(AcquireError::Cancelled) => {}
            Err(other) => panic!("{other}"),
        });

        take_each(&theirs, &["b", "c"]);
        cancel.cancel();
        waiter.join();

        assert_eq!(checked::now(), ms(0), "an answer or a signal was not heard");
        guard.release().unwrap();
        world.end([ours, theirs]);
    });
}

#[test]
fn a_connection_that_breaks_under_callers_is_ended_by_its_worker() {
    patiently(3_000, || end_of_connection(Server::hang_up));
}

#[test]
fn a_connection_with_an_invalid_reply_is_ended_by_its_worker() {
    patiently(3_000, || end_of_connection(Server::babble));
}

fn end_of_connection(end: fn(&Server)) {
    let world = World::new(1);
    let locks = world.manager();
    let lock = locks.mutex("a");
    // From now on it is connected: a node that breaks the login is down for a while.
    drop(lock.try_lock().unwrap());
    let caller = spawn("caller", move || {
        for _ in 0..2 {
            drop(lock.try_lock());
        }
    });

    end(&world.servers[0]);

    caller.join();
    sleep_until(checked::now() + A_MOMENT);
    // The next one finds a connection that works.
    let before = checked::now();
    locks.mutex("b").try_lock().unwrap().release().unwrap();
    assert_eq!(
        checked::now(),
        before,
        "the broken connection was still used"
    );
    world.end([locks]);
}

/// The end may be announced together with the last answers.
#[test]
fn an_end_that_comes_with_the_last_bytes_is_noticed_without_another_command() {
    patiently(3_000, || {
        let world = World::new(1);
        let locks = world.manager();
        drop(locks.mutex("a").try_lock().unwrap());
        let take = |name: &'static str| {
            let lock = locks.mutex(name);
            spawn(name, move || drop(lock.try_lock()))
        };
        let threads = ["a", "b"].map(take);

        world.servers[0].hang_up();

        join(threads);
        sleep_until(checked::now() + A_MOMENT);
        assert_ne!(
            locks.stats().connection_failures,
            0,
            "nobody has noticed it"
        );
        world.end([locks]);
    });
}

/// A thread that takes and releases locks at these times, and needs no time for it.
fn pairs_at(locks: &LockManager, name: &'static str, times: Vec<Duration>) -> OwnThread {
    let lock = locks.mutex(name);
    spawn(name, move || {
        for at in times {
            sleep_until(at);
            lock.try_lock().unwrap().release().unwrap();
            assert_eq!(checked::now(), at, "a command or an answer lay there");
        }
    })
}

/// Each may find that the other writes, just before that ends.
#[test]
fn concurrent_commands_of_two_callers_are_written_and_answered() {
    patiently(4_000, || {
        let world = World::new(1);
        let locks = world.manager();

        join(["a", "b"].map(|name| pairs_at(&locks, name, vec![ms(0), A_MOMENT, A_MOMENT * 2])));

        assert!(world.all_free());
        world.end([locks]);
    });
}

/// One of three takes no more bytes: what is given to it waits in its channel and on its connection.
#[test]
fn a_server_that_reads_nothing_delays_none_of_several_callers() {
    patiently(2_000, || {
        let world = World::with_room(3, 150);
        let locks = world.manager();
        drop(locks.mutex("a").try_lock().unwrap());
        until(|| world.all_free());
        world.servers[0].read_nothing_until(ms(100));

        join(["a", "b"].map(|name| pairs_at(&locks, name, vec![ms(0)])));

        sleep_until(ms(100));
        assert!(world.servers[1].is_free() && world.servers[2].is_free());
        sleep_until(ms(100) + A_MOMENT);
        // It has run everything, in order.
        world.end([locks]);
    });
}

/// Whoever gives it finds that nobody will write it: what waits for the answer would keep all of the manager alive.
#[test]
fn a_command_that_is_given_while_the_worker_ends_is_sent_or_refused() {
    hastily(2_000, || {
        let world = World::new(1);
        let locks = world.manager();
        drop(locks.mutex("a").try_lock());
        let server = Arc::clone(&locks.engine.shared.fanout.nodes[0]);
        let theirs = locks.clone();
        let caller = spawn("caller", move || {
            let fanout = &theirs.engine.shared.fanout;
            let command = Command::time();
            query_many(fanout, [NodeQuery { command, to: None }]);
        });

        locks.shutdown();

        caller.join();
        // In haste the worker may have been left behind.
        calm_down();
        sleep_until(checked::now() + A_MOMENT);
        assert_eq!(server.stats().queued, 0);
        world.end([locks]);
    });
}
