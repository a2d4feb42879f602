//! The process that takes locks, works under them, and tells the judge what it believes.
//!
//! It is as careless as a program can be without breaking a rule: half of the time it writes without another look at
//! its guard. What it writes then is for the resource to refuse.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{process, thread};

use quorlock::{AcquireError, LockGuard, LockManager, Lost, ReleaseError};

use crate::ambush::{Ambush, Phase};
use crate::child::{orders, say};
use crate::judge::Line;
use crate::options::{QUARANTINE, builder};
use crate::support::{between, boot, nanos, times};

/// How a client is to be; told in one line.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    pub(crate) number: u64,
    pub(crate) judge: String,
    pub(crate) ttl: Duration,
    pub(crate) seed: u64,
    pub(crate) resources: u64,
    /// Planted: it does not renew, and claims to hold the lock until it gives it back.
    pub(crate) deaf: bool,
    /// Planted: it counts the votes of nodes that may have forgotten locks.
    pub(crate) careless: bool,
    pub(crate) urls: Vec<String>,
}

impl Role {
    pub(crate) fn line(&self) -> String {
        let Role { number, judge, ttl, seed, resources, deaf, careless, urls } = self;
        format!("{number} {judge} {} {seed} {resources} {deaf} {careless} {}", ttl.as_millis(), urls.join(" "))
    }

    fn read(line: &str) -> Role {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap();
        Role {
            number: word().parse().unwrap(),
            judge: word().to_owned(),
            ttl: Duration::from_millis(word().parse().unwrap()),
            seed: word().parse().unwrap(),
            resources: word().parse().unwrap(),
            deaf: word().parse().unwrap(),
            careless: word().parse().unwrap(),
            urls: words.map(str::to_owned).collect(),
        }
    }
}

#[test]
#[ignore = "a process of a campaign"]
fn child_that_locks() {
    let Some(mut orders) = orders() else { return };
    let Some(role) = orders.next() else { return };
    let role = Role::read(&role);
    let locks = builder(&role.urls, role.ttl).quarantine(QUARANTINE && !role.careless).build().unwrap();
    let ambush = Ambush::start(locks.clone());
    let finish = Arc::new(AtomicBool::new(false));
    thread::spawn({
        let (ambush, finish) = (ambush.clone(), Arc::clone(&finish));
        move || {
            for order in orders {
                if order == "finish" {
                    finish.store(true, Ordering::SeqCst);
                } else {
                    assert!(ambush.obey(&order), "{order:?} is no order");
                }
            }
            // The parent is gone.
            process::exit(1);
        }
    });
    let judge = Line::connect(&role.judge);
    let mut client = Client { rng: fastrand::Rng::with_seed(role.seed), role, locks, ambush, judge };
    say("ready");
    while !finish.load(Ordering::SeqCst) {
        client.turn();
    }
    let stats = client.locks.stats();
    client.locks.shut_down();
    say(format_args!("done {} {} {} {}", stats.rounds_won, stats.rounds_held, stats.extensions, stats.locks_lost));
}

struct Client {
    role: Role,
    rng: fastrand::Rng,
    locks: LockManager,
    ambush: Ambush,
    judge: Line,
}

/// A hold, as the judge knows it.
struct Hold {
    guard: LockGuard,
    number: String,
}

impl Client {
    /// Asks for a lock once, and does something with it.
    fn turn(&mut self) {
        let resource = self.rng.u64(..self.role.resources);
        let extends = self.rng.u8(..4) == 0;
        let renew = self.rng.u8(..4) != 0 && !self.role.deaf;
        let lock = self.locks.mutex(format!("r{resource}")).renew(renew).fair(self.rng.bool());
        let wait = between(&mut self.rng, self.role.ttl, 0.0, 3.0);
        let patience = self.rng.u8(..4);

        self.ambush.enter(Phase::Acquire);
        let asked = boot();
        let taken = match patience {
            0 | 1 => lock.try_lock(),
            2 => lock.try_lock_for(wait),
            _ => lock.lock(),
        };
        let acquired = boot();
        self.ambush.enter(Phase::Renewal);
        match taken {
            Ok(guard) => {
                let Role { number, ttl, .. } = &self.role;
                let (token, ttl) = (guard.fencing_token().get(), nanos(*ttl));
                let lease = format!(
                    "lease {number} {resource} {token} {ttl} {} {asked} {acquired}",
                    renew || extends || self.role.deaf
                );
                let number = self.judge.ask(&lease);
                let hold = Hold { guard, number };
                self.work(&hold, extends);
                self.end(hold);
            }
            Err(err) => {
                self.judge.ask(&format!("failed {}", kind_of(&err)));
                thread::sleep(between(&mut self.rng, self.role.ttl, 0.0, 0.02));
            }
        }
        self.ambush.enter(Phase::Nothing);
    }

    /// Registers, reads, thinks, writes.
    fn work(&mut self, hold: &Hold, extends: bool) {
        self.look(hold);
        let registered = self.judge.ask(&format!("register {}", hold.number));
        if registered == "stale" {
            self.look(hold);
            return;
        }
        let careful = self.rng.bool();
        for _ in 0..self.rng.u8(1..=2) {
            let version = self.judge.ask(&format!("read {}", hold.number));
            let Some(version) = version.strip_prefix("ok ") else {
                self.look(hold);
                return;
            };
            let valid = self.think(hold, extends);
            if careful && !valid {
                return;
            }
            let written = self.judge.ask(&format!("write {} {version}", hold.number));
            if written == "stale" {
                self.look(hold);
                return;
            }
        }
    }

    /// Lets time pass; whether the guard was valid to the end.
    fn think(&mut self, hold: &Hold, extends: bool) -> bool {
        let length = match self.rng.u8(..40) {
            _ if self.role.deaf => (1.5, 2.5),
            // Long enough to be renewed.
            _ if self.ambush.waits_for(Phase::Renewal) => (0.4, 0.9),
            0 => (0.5, 2.0),
            1..=4 => (0.1, 0.6),
            _ => (0.0, 0.01),
        };
        let until = boot() + nanos(between(&mut self.rng, self.role.ttl, length.0, length.1));
        let step = times(self.role.ttl, 0.05);
        let mut valid = self.look(hold);
        let mut next_extension = boot() + nanos(step);
        loop {
            let now = boot();
            if until <= now {
                return valid;
            }
            if extends && next_extension <= now && !self.role.deaf {
                next_extension = now + nanos(self.role.ttl / 3);
                let _ = hold.guard.extend(self.role.ttl);
            }
            thread::sleep(step.min(Duration::from_nanos(until - now)));
            valid = self.look(hold);
        }
    }

    /// Asks the guard, and tells the judge what it said.
    fn look(&mut self, hold: &Hold) -> bool {
        let before = boot();
        let remaining = hold.guard.remaining();
        let after = boot();
        let remaining = if self.role.deaf { self.role.ttl / 2 } else { remaining };
        self.judge.ask(&format!("seen {} {before} {after} {}", hold.number, nanos(remaining)));
        !remaining.is_zero()
    }

    fn end(&mut self, hold: Hold) {
        self.look(&hold);
        let Hold { guard, number } = hold;
        self.judge.ask(&format!("releasing {number} {}", boot()));
        self.ambush.enter(Phase::Release);
        let how = if self.rng.bool() {
            drop(guard);
            "dropped"
        } else {
            match guard.release() {
                Ok(_) | Err(ReleaseError::NotConfirmed { .. }) => "released",
                Err(ReleaseError::Lost(Lost::Expired | Lost::LeaseOver)) => "expired",
                Err(_) => "lost",
            }
        };
        self.ambush.enter(Phase::Nothing);
        self.judge.ask(&format!("ended {number} {how}"));
    }
}

fn kind_of(err: &AcquireError) -> &'static str {
    match err {
        AcquireError::Held { .. } => "held",
        AcquireError::NoQuorum { .. } => "no-quorum",
        AcquireError::KeyInUse { .. } => panic!("{err}"),
        _ => "other",
    }
}
