//! The threads' code under the checker: many schedules of the same small program, and what must be true in all.
//!
//! ```text
//! RUSTC_WORKSPACE_WRAPPER=.ci/schedules cargo test --lib tests::schedules
//! ```
//!
//! `QUORLOCK_SCHEDULES=10` tries ten times as many schedules, `SHUTTLE_RANDOM_SEED=1` others, and `QUORLOCK_TRACE=1` with
//! `-- --nocapture` and the name of one check says what happened before it failed.
//!
//! What is run is the crate itself, on the checker's mutexes, sockets and clock (`src/sys/checked.rs`), against servers that
//! live in the same run. Not looked for: what weaker memory orderings allow.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "test code: a panic is a finding"
)]

mod bounds;
mod flush;
mod hand_overs;
mod leases;
mod lines;
mod observed;
mod records;
mod rounds;
mod server;
mod turns;
mod workers;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::builder::Builder;
use crate::engine::CancelHandle;
use crate::error::AcquireError;
use crate::lock::LockGuard;
use crate::manager::LockManager;
use crate::sys::checked::{self, OwnThread, Sleeper, check};
use crate::wire::Kind;

use self::observed::Observed;
use self::server::{Ran, Seen, Server};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Time passes only while everybody sleeps.
fn patiently(schedules: usize, body: impl Fn() + Clone + Send + Sync + 'static) {
    check(schedules, body);
}

/// Time passes at any step, so that whatever has a deadline may miss it.
fn hastily(schedules: usize, body: impl Fn() + Clone + Send + Sync + 'static) {
    check(schedules, move || {
        hurry();
        body();
    });
}

fn hurry() {
    checked::set_haste(Some(60));
}

fn calm_down() {
    checked::set_haste(None);
}

/// Servers and managers of one run.
struct World {
    servers: Vec<Server>,
    observed: Mutex<Vec<Arc<Observed>>>,
}

impl World {
    fn new(servers: u16) -> World {
        World::with_room(servers, 0)
    }

    /// Connections to its servers take no more than `room` bytes at a time.
    fn with_room(servers: u16, room: usize) -> World {
        World {
            servers: (0..servers).map(|it| Server::start(it, room)).collect(),
            observed: Mutex::default(),
        }
    }

    fn manager(&self) -> LockManager {
        self.manager_with(|it| it)
    }

    fn manager_with(&self, options: impl FnOnce(Builder) -> Builder) -> LockManager {
        let urls = (0..self.servers.len()).map(|it| Server::url(u16::try_from(it).unwrap()));
        let observed = Arc::new(Observed::default());
        self.observed.lock().unwrap().push(Arc::clone(&observed));
        options(
            LockManager::builder(urls)
                .quarantine(false)
                .observer(observed),
        )
        .build()
        .unwrap()
    }

    /// Ends the managers, then the servers, and looks at what these have seen.
    fn end(self, managers: impl IntoIterator<Item = LockManager>) -> Vec<Seen> {
        calm_down();
        for manager in managers {
            manager.shutdown();
            assert_eq!(manager.stats().waiting, 0, "a ticket was left behind");
        }
        self.observed
            .into_inner()
            .unwrap()
            .iter()
            .for_each(Observed::check);
        let seen: Vec<Seen> = self.servers.into_iter().map(Server::stop).collect();
        seen.iter().for_each(|it| assert_order(&it.log));
        seen
    }

    fn all_free(&self) -> bool {
        self.servers.iter().all(Server::is_free)
    }
}

/// Behind the first release of an owner a node hears nothing of that owner but releases.
fn assert_order(log: &[Ran]) {
    let mut released = HashSet::new();
    for ran in log {
        if ran.kind == Kind::Release {
            released.insert(&ran.owner);
        } else {
            assert!(
                !released.contains(&ran.owner),
                "{:?} came behind its release: {log:#?}",
                ran.kind
            );
        }
    }
}

/// Runs `work` on a thread.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> OwnThread {
    OwnThread::spawn(name.to_owned(), work).unwrap()
}

/// A call on a thread that holds the lock for a moment, or is cancelled.
fn call(
    locks: &LockManager,
    name: &'static str,
    section: &Section,
    cancel: Option<&CancelHandle>,
) -> OwnThread {
    let lock = locks.mutex(name);
    let section = section.clone();
    let cancelled = cancel.is_some();
    let lock = if let Some(cancel) = cancel {
        lock.cancelled_by(cancel)
    } else {
        lock
    };
    spawn(
        if cancelled { "cancelled" } else { "patient" },
        move || match lock.lock() {
            Ok(guard) => {
                section.pass(&guard);
                guard.release().unwrap();
            }
            Err(AcquireError::Cancelled) if cancelled => {}
            Err(other) => panic!("{other}"),
        },
    )
}

/// Takes locks of these names, each on a thread of its own, and releases them.
fn take_each(locks: &LockManager, names: &'static [&'static str]) {
    let take = |name: &&'static str| {
        let lock = locks.mutex(name);
        spawn(name, move || {
            lock.try_lock().unwrap().release().unwrap();
        })
    };
    join(names.iter().map(take).collect::<Vec<_>>());
}

fn join(threads: impl IntoIterator<Item = OwnThread>) {
    threads.into_iter().for_each(OwnThread::join);
}

fn sleep_until(since_start: Duration) {
    Sleeper::new().sleep(Some(since_start));
}

/// Lets others run until something is so.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        shuttle::thread::yield_now();
    }
}

/// What must hold one at a time.
#[derive(Clone, Default)]
struct Section {
    stays: Arc<Mutex<Vec<Stay>>>,
}

#[derive(Default)]
struct Stay {
    /// Those who were inside when it began.
    beside: Vec<usize>,
    is_over: bool,
    /// The lock was held to the end.
    counts: bool,
}

impl Section {
    fn pass(&self, guard: &LockGuard) {
        let me = {
            let mut stays = self.stays.lock().unwrap();
            let beside = (0..stays.len()).filter(|it| !stays[*it].is_over).collect();
            stays.push(Stay {
                beside,
                ..Stay::default()
            });
            stays.len() - 1
        };
        checked::point();
        self.stays.lock().unwrap()[me].is_over = true;
        // Held now, so held while it was inside.
        let counts = guard.is_valid();
        self.stays.lock().unwrap()[me].counts = counts;
    }

    /// How many have passed; never two at a time.
    fn passed(&self) -> usize {
        let stays = self.stays.lock().unwrap();
        let held = |it: &&Stay| it.counts;
        for stay in stays.iter().filter(held) {
            assert!(
                !stay.beside.iter().any(|it| stays[*it].counts),
                "two were inside"
            );
        }
        stays.iter().filter(held).count()
    }
}
