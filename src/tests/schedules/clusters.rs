//! A node that is a cluster: the thread that asks for its map, and the connections to its masters.

use std::sync::Arc;

use super::server::{FIRST_PORT, Server};
use super::slots::Slots;
use super::{Section, World, calm_down, hastily, join, ms, patiently, sleep_until, spawn};
use crate::builder::Builder;
use crate::ids::NodeId;
use crate::lock::LockGuard;
use crate::manager::LockManager;
use crate::sys::checked;

/// Masters that share the slots, and perhaps servers beside them that are nodes of their own.
struct Masters {
    world: World,
    count: u16,
    slots: Arc<Slots>,
}

impl Masters {
    fn new(count: u16) -> Masters {
        Masters::beside(count, 0)
    }

    fn beside(count: u16, singles: u16) -> Masters {
        let slots = Slots::shared(count, FIRST_PORT);
        let masters = (0..count).map(|it| Server::start_in(it, 0, Some(&slots)));
        let servers = masters
            .chain((count..count + singles).map(|it| Server::start(it, 0)))
            .collect();
        Masters {
            world: World {
                servers,
                told: Default::default(),
            },
            count,
            slots,
        }
    }

    /// Knows the first of the masters, and learns of the others.
    fn manager(&self, options: impl FnOnce(Builder) -> Builder) -> LockManager {
        let seed = Server::url(0).replace("redis:", "redis+cluster:");
        let all = u16::try_from(self.world.servers.len()).unwrap();
        let urls = [seed].into_iter().chain((self.count..all).map(Server::url));
        options(LockManager::builder(urls).quarantine(false))
            .build()
            .unwrap()
    }

    /// The slot of a lock goes to the other one, with what is stored in it.
    fn hand_over(&self, name: &str) {
        let from = self.slots.owner_of(name.as_bytes()).unwrap();
        let to = (from + 1) % usize::from(self.count);
        self.world.servers[from].hand_over(name.as_bytes(), &self.world.servers[to]);
    }

    /// All that one master serves goes to the other.
    fn hand_over_all(&self, from: usize, to: usize) {
        self.world.servers[from].hand_over_all(&self.world.servers[to]);
    }

    fn end(self, locks: LockManager) {
        let servers = self.world.end([locks]);
        assert!(
            servers.iter().all(|it| it.locks == 0),
            "a key was left behind"
        );
    }
}

/// Takes the lock, and again until it works: an answer from who does not serve it any more is a failed vote.
fn take(locks: &LockManager, name: &str) -> LockGuard {
    loop {
        match locks.mutex(name).renew(false).try_lock() {
            Ok(guard) => return guard,
            Err(_) => sleep_until(checked::now() + ms(10)),
        }
    }
}

/// Side by side, and no time passes meanwhile.
fn each_is_taken_at_once<const N: usize>(locks: &LockManager, names: [&'static str; N]) {
    join(names.map(|name| {
        let lock = locks.mutex(name);
        spawn(name, move || {
            lock.try_lock().unwrap().release().unwrap();
        })
    }));
    assert_eq!(checked::now(), ms(0), "somebody slept for too long");
}

#[test]
fn a_slot_that_moves_while_callers_ask_keeps_nobody_waiting_and_the_newest_map_counts() {
    patiently(400, || {
        let masters = Arc::new(Masters::new(2));
        let locks = masters.manager(|it| it);
        let section = Section::default();
        let call = |_| {
            let (locks, section) = (locks.clone(), section.clone());
            spawn("caller", move || {
                let guard = take(&locks, "a");
                section.pass(&guard);
                drop(guard);
            })
        };
        let callers: Vec<_> = (0..2).map(call).collect();
        let theirs = Arc::clone(&masters);
        let mover = spawn("mover", move || (0..3).for_each(|_| theirs.hand_over("a")));

        join(callers.into_iter().chain([mover]));
        drop(take(&locks, "a"));

        assert_eq!(section.passed(), 2);
        assert!(
            checked::now() < ms(900),
            "somebody waited until the map was asked for anyway"
        );
        Arc::into_inner(masters).unwrap().end(locks);
    });
}

#[test]
fn one_seed_is_enough_for_the_first_call_and_nobody_waits_for_the_next_look() {
    patiently(200, || {
        let masters = Masters::new(3);
        let locks = masters.manager(|it| it);
        each_is_taken_at_once(&locks, ["a", "b", "c"]);
        masters.end(locks);
    });
}

/// One of its masters answers nothing any more, and is waited for.
#[test]
fn the_end_of_a_manager_does_not_wait_for_a_look_that_is_under_way() {
    patiently(200, || {
        let masters = Masters::new(2);
        let locks = masters.manager(|it| it.connect_timeout(ms(2_000)));
        drop(take(&locks, "b"));
        masters.world.servers[1].read_nothing_until(ms(60_000));
        // The next look is under way by then.
        sleep_until(ms(1_500));
        let lock = locks.mutex("b");
        let caller = spawn("caller", move || drop(lock.try_lock()));

        locks.shut_down();

        assert!(checked::now() < ms(1_600), "the look was waited for");
        caller.join();
        masters.world.servers[1].read_nothing_until(ms(0));
        masters.end(locks);
    });
}

/// The other nodes are a majority: rounds are won and releases given while the cluster is asked for its map.
#[test]
fn what_waits_for_the_map_goes_to_its_lane_in_order() {
    patiently(400, || {
        let masters = Masters::beside(2, 2);
        let locks = masters.manager(|it| it);
        each_is_taken_at_once(&locks, ["a", "b"]);
        masters.end(locks);
    });
}

/// Time passes, so calls end before they are answered.
#[test]
fn a_release_follows_its_slot_whatever_times_out() {
    hastily(200, || {
        let masters = Arc::new(Masters::new(2));
        let locks = masters.manager(|it| it);
        let section = Section::default();
        let call = |name: &'static str| {
            let (lock, section) = (locks.mutex(name).renew(false), section.clone());
            spawn(name, move || {
                if let Ok(guard) = lock.try_lock() {
                    section.pass(&guard);
                    drop(guard);
                }
            })
        };
        let callers = ["a", "a"].map(call);
        let theirs = Arc::clone(&masters);
        let mover = spawn("mover", move || theirs.hand_over("a"));

        join(callers.into_iter().chain([mover]));

        section.passed();
        calm_down();
        let before = checked::now();
        drop(take(&locks, "a"));
        assert!(
            checked::now() < before + ms(5_000),
            "a key was left until it had expired"
        );
        Arc::into_inner(masters).unwrap().end(locks);
    });
}

/// With lives so short that what was asked of the old owner is soon over.
#[test]
fn a_master_that_serves_nothing_any_more_has_no_lane_in_the_end_and_another_takes_its_place() {
    patiently(20, || {
        let masters = Masters::new(2);
        let locks = masters.manager(|it| it.ttl(ms(1_000)).max_ttl(ms(1_000)));
        drop(take(&locks, "a"));
        drop(take(&locks, "b"));
        masters.hand_over_all(1, 0);
        sleep_until(checked::now() + ms(10_000));

        assert_eq!(
            masters.world.servers[1].clients(),
            0,
            "a connection was left"
        );
        masters.hand_over_all(0, 1);
        drop(take(&locks, "b"));
        let cluster = &locks.engine().shared().fanout.nodes()[0];
        assert_eq!(
            cluster.servers().len(),
            2,
            "what is of no use any more is kept for ever"
        );
        masters.end(locks);
    });
}
