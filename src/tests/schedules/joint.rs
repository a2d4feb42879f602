//! The thread that drives all connections together.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::driving::assert_workers_drive;
use super::{Server, World, join, ms, patiently, sleep_until, spawn, until};
use crate::engine::nodes::drive::IDLE_MIN;
use crate::engine::nodes::joint::MOMENT;
use crate::engine::nodes::link::Driver;
use crate::manager::LockManager;
use crate::sys::checked::{self, OwnThread};

/// Who drives each connection.
fn drivers(locks: &LockManager) -> Vec<Driver> {
    let nodes = locks.engine().shared().fanout.nodes();
    nodes.iter().map(|it| it.link.with(|it| it.driver())).collect()
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

/// They call again just when it leaves.
#[test]
fn whatever_is_sent_while_the_thread_that_drives_for_all_begins_or_leaves_is_written_and_its_answer_read() {
    patiently(4_000, || {
        let world = World::new(1);
        let locks = world.manager();

        join(["a", "b"].map(|name| pairs_at(&locks, name, vec![ms(0), MOMENT, MOMENT * 2])));

        assert!(world.all_free());
        sleep_until(MOMENT * 2 + IDLE_MIN * 4);
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
        let pair = |name: &'static str| {
            let (lock, locks, seen) = (locks.mutex(name), locks.clone(), Arc::clone(&seen));
            spawn(name, move || {
                let guard = lock.try_lock().unwrap();
                let drivers = drivers(&locks);
                seen.lock().unwrap().extend(drivers);
                guard.release().unwrap();
            })
        };
        join(["a", "b"].map(pair));
        sleep_until(IDLE_MIN * 4);
        assert_workers_drive(&locks);
        seen.lock().unwrap().clear();

        pair("c").join();

        assert_eq!(*seen.lock().unwrap(), [Driver::Idle; 2], "it has left them, and nobody has come since");
        world.end([locks]);
    });
}

#[test]
fn a_connection_that_breaks_under_the_thread_that_drives_for_all_is_ended_by_its_worker() {
    patiently(2_000, || end_of_connection(Server::hang_up));
}

#[test]
fn a_connection_on_which_the_thread_that_drives_for_all_reads_nonsense_is_ended_by_its_worker() {
    patiently(2_000, || end_of_connection(Server::babble));
}

fn end_of_connection(end: fn(&Server)) {
    let world = World::new(1);
    let locks = world.manager();
    // From now on it is connected: a node that breaks the login is down for a while.
    drop(locks.mutex("a").try_lock().unwrap());
    let call = |name: &'static str| {
        let lock = locks.mutex(name);
        spawn(name, move || {
            for _ in 0..2 {
                drop(lock.try_lock());
            }
        })
    };
    let threads = ["a", "b"].map(call);

    end(&world.servers[0]);

    join(threads);
    let later = checked::now() + IDLE_MIN * 4;
    sleep_until(later);
    assert_workers_drive(&locks);
    // The next connection is driven together as well.
    join(["c", "d"].map(|name| pairs_at(&locks, name, vec![later])));
    sleep_until(later + IDLE_MIN * 4);
    assert_workers_drive(&locks);
    world.end([locks]);
}

/// One of three takes no more bytes: what is given to it waits in its queue and on its connection.
#[test]
fn a_server_that_takes_nothing_holds_nobody_up_while_one_thread_drives_for_all() {
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
