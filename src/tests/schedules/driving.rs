//! Who drives a connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Section, Server, World, join, ms, patiently, sleep_until, spawn, until};
use crate::engine::CancelHandle;
use crate::engine::nodes::drive::IDLE_MIN;
use crate::engine::nodes::link::Driver;
use crate::error::AcquireError;
use crate::manager::LockManager;
use crate::sys::checked::{self, OwnThread};

/// Nobody has forgotten to give a connection back.
pub(super) fn assert_workers_drive(locks: &LockManager) {
    let nodes = &locks.engine.shared.fanout.nodes;
    for server in nodes {
        let (driver, is_open) = server.link.with(|it| (it.driver(), it.is_open()));
        assert_eq!(driver, Driver::Worker, "open: {is_open}");
    }
}

/// The other manager's call drives its connections while it waits, and hears of the release there.
#[test]
fn a_waiter_that_drives_hears_of_a_release_by_another_manager() {
    patiently(4_000, || {
        let world = World::new(1);
        let (ours, theirs) = (world.manager(), world.manager());
        let guard = ours.mutex("a").try_lock().unwrap();
        let lock = theirs.mutex("a");
        let waiter = spawn("waiter", move || {
            lock.lock().unwrap().release().unwrap();
        });

        guard.release().unwrap();

        waiter.join();
        assert_eq!(checked::now(), ms(0), "the notice lay unread");
        assert!(world.all_free());
        sleep_until(IDLE_MIN * 4);
        assert_workers_drive(&ours);
        assert_workers_drive(&theirs);
        world.end([ours, theirs]);
    });
}

/// While one waits and drives, others of the same manager lock something else.
#[test]
fn calls_beside_a_waiter_that_drives_get_their_answers() {
    patiently(4_000, || {
        let world = World::new(2);
        let (ours, theirs) = (world.manager(), world.manager());
        let guard = ours.mutex("a").try_lock().unwrap();
        let cancel = CancelHandle::new();
        let lock = theirs.mutex("a").cancelled_by(&cancel);
        let waiter = spawn("waiter", move || match lock.lock() {
            Ok(guard) => drop(guard),
            Err(AcquireError::Cancelled { .. }) => {}
            Err(other) => panic!("{other}"),
        });
        let take = |name: &'static str| {
            let lock = theirs.mutex(name);
            spawn(name, move || {
                lock.try_lock().unwrap().release().unwrap();
            })
        };

        join(["b", "c"].map(take));
        cancel.cancel();
        waiter.join();

        assert_eq!(checked::now(), ms(0), "an answer or a signal was not heard");
        guard.release().unwrap();
        sleep_until(IDLE_MIN * 4);
        assert_workers_drive(&theirs);
        world.end([ours, theirs]);
    });
}

#[test]
fn a_connection_is_idle_for_a_moment_only() {
    patiently(4_000, || {
        let world = World::new(2);
        let locks = world.manager();
        let section = Section::default();
        let take = |_| {
            let (lock, section) = (locks.mutex("a"), section.clone());
            spawn("caller", move || {
                for round in 1..4 {
                    let guard = lock.lock().unwrap();
                    section.pass(&guard);
                    guard.release().unwrap();
                    // When the renewal thread has seen no round for a while, and looks after what was left.
                    sleep_until(IDLE_MIN * 2 * round);
                }
            })
        };

        join((0..2).map(take).collect::<Vec<_>>());

        assert_eq!(section.passed(), 6);
        sleep_until(checked::now() + IDLE_MIN * 4);
        assert_workers_drive(&locks);
        world.end([locks]);
    });
}

/// It breaks while a caller drives, while its worker does, or while it is idle.
#[test]
fn a_connection_that_breaks_under_a_caller_is_ended_by_its_worker() {
    patiently(3_000, || end_of_connection(Server::hang_up));
}

#[test]
fn a_connection_on_which_a_caller_reads_nonsense_is_ended_by_its_worker() {
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
    sleep_until(checked::now() + IDLE_MIN * 4);
    assert_workers_drive(&locks);
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

/// Two callers, so that workers drive. The end may be announced to one together with the last answers.
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
        sleep_until(checked::now() + IDLE_MIN * 4);
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

/// Each may be alone, or find that it is not.
#[test]
fn whatever_two_callers_send_at_the_same_moment_is_written_and_its_answer_read() {
    patiently(4_000, || {
        let world = World::new(1);
        let locks = world.manager();

        join(["a", "b"].map(|name| pairs_at(&locks, name, vec![ms(0), IDLE_MIN, IDLE_MIN * 2])));

        assert!(world.all_free());
        sleep_until(IDLE_MIN * 6);
        assert_workers_drive(&locks);
        world.end([locks]);
    });
}

#[test]
fn a_caller_that_is_alone_again_drives_by_itself() {
    patiently(2_000, || {
        let world = World::new(2);
        let locks = world.manager();
        let seen = Arc::new(Mutex::new(Vec::new()));
        join(["a", "b"].map(|name| pairs_at(&locks, name, vec![ms(0)])));
        sleep_until(IDLE_MIN * 4);
        assert_workers_drive(&locks);

        let (lock, theirs, drivers) = (locks.mutex("c"), locks.clone(), Arc::clone(&seen));
        let caller = spawn("c", move || {
            let guard = lock.try_lock().unwrap();
            let nodes = &theirs.engine.shared.fanout.nodes;
            drivers
                .lock()
                .unwrap()
                .extend(nodes.iter().map(|it| it.link.with(|it| it.driver())));
            guard.release().unwrap();
        });
        caller.join();

        assert_eq!(
            *seen.lock().unwrap(),
            [Driver::Idle; 2],
            "it has left them, and nobody has come since"
        );
        world.end([locks]);
    });
}

/// One of three takes no more bytes: what is given to it waits in its queue and on its connection.
#[test]
fn a_server_that_takes_nothing_holds_none_of_several_callers_up() {
    patiently(2_000, || {
        let world = World::with_room(3, 150);
        let locks = world.manager();
        drop(locks.mutex("a").try_lock().unwrap());
        until(|| world.all_free());
        world.servers[0].read_nothing_until(ms(100));

        join(["a", "b"].map(|name| pairs_at(&locks, name, vec![ms(0)])));

        sleep_until(ms(100));
        assert!(world.servers[1].is_free() && world.servers[2].is_free());
        sleep_until(ms(100) + IDLE_MIN * 4);
        assert_workers_drive(&locks);
        // It has run everything, in order.
        world.end([locks]);
    });
}
