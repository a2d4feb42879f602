//! The process that takes locks, works under them, and tells the judge what it believes.
//!
//! What it takes and does there is a [`Workload`]: all clients turn to the same one at the same
//! time, so that they meet.
//!
//! It is as careless as a program can be without breaking a rule: half of the time it writes without another look at
//! its guard. What it writes then is for the resource to refuse.

use std::io::{BufRead, BufReader, stdin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{process, thread};

use devnodes::{is_child, say};
use quorlock::observer::{Event, Observer};
use quorlock::{AcquireError, LockManager, LostReason, ReleaseError};

use crate::guards::{Call, Guard, Taken};
use crate::judge::Line;
use crate::options::builder;
use crate::phase_signals::{Phase, PhaseSignals, REPORTED};
use crate::support::{between, boot, nanos, times};
use crate::workloads::Workload;

/// How a client is to be; told in one line.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    pub(crate) number: u64,
    pub(crate) judge: String,
    pub(crate) ttl: Duration,
    pub(crate) seed: u64,
    pub(crate) works: Vec<Workload>,
    /// Planted: it does not renew, and claims to hold the lock until it gives it back.
    pub(crate) deaf: bool,
    /// Without, which is planted, it counts the votes of nodes that may have forgotten locks. The same for all clients: a
    /// server refuses whoever differs from its first.
    pub(crate) quarantine: bool,
    /// It holds locks for a good part of their life: most nodes are to forget them meanwhile.
    pub(crate) slow: bool,
    pub(crate) urls: Vec<String>,
}

impl Role {
    pub(crate) fn line(&self) -> String {
        let Role {
            number,
            judge,
            ttl,
            seed,
            works,
            deaf,
            quarantine,
            slow,
            urls,
        } = self;
        let works: Vec<_> = works.iter().map(|it| it.name()).collect();
        let (ttl, works, urls) = (ttl.as_millis(), works.join(","), urls.join(" "));
        format!("{number} {judge} {ttl} {seed} {works} {deaf} {quarantine} {slow} {urls}")
    }

    fn read(line: &str) -> Role {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap();
        Role {
            number: word().parse().unwrap(),
            judge: word().to_owned(),
            ttl: Duration::from_millis(word().parse().unwrap()),
            seed: word().parse().unwrap(),
            works: word()
                .split(',')
                .map(|name| {
                    Workload::ALL
                        .into_iter()
                        .find(|it| it.name() == name)
                        .unwrap()
                })
                .collect(),
            deaf: word().parse().unwrap(),
            quarantine: word().parse().unwrap(),
            slow: word().parse().unwrap(),
            urls: words.map(str::to_owned).collect(),
        }
    }
}

#[test]
#[ignore = "a process of a campaign"]
fn child_that_locks() {
    if !is_child() {
        return;
    }
    // One that is stopped would not notice that its parent is gone.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let mut orders = BufReader::new(stdin()).lines().map_while(Result::ok);
    let Some(role) = orders.next() else { return };
    let role = Role::read(&role);
    let builder = builder(&role.urls, role.ttl).quarantine(role.quarantine);
    let locks = builder.observer(reports_losses(&role)).build().unwrap();
    let signals = PhaseSignals::start(locks.clone());
    let finish = Arc::new(AtomicBool::new(false));
    thread::spawn({
        let (signals, finish) = (signals.clone(), Arc::clone(&finish));
        move || {
            for order in orders {
                if order == "finish" {
                    finish.store(true, Ordering::SeqCst);
                } else {
                    assert!(signals.obey(&order), "{order:?} is no order");
                }
            }
            // The parent is gone.
            process::exit(1);
        }
    });
    let judge = Line::connect(&role.judge);
    let mut client = Client {
        rng: fastrand::Rng::with_seed(role.seed),
        role,
        locks,
        signals,
        judge,
    };
    say("ready");
    while !finish.load(Ordering::SeqCst) {
        client.turn();
    }
    let stats = client.locks.stats();
    client.locks.shutdown();
    say(format_args!(
        "done {} {} {} {}",
        stats.rounds_won, stats.rounds_held, stats.extensions, stats.locks_lost
    ));
}

/// Reports each loss to the judge at once: the client may be killed before its next look at its guard.
///
/// RACE: T1, a renewal, finds no majority with the lock, counts that, and queues the release of the
/// rest; T2, another client, gets the lock; T3, [`PhaseSignals`], kills this client before its
/// events are told. Therefore it waits until everything counted is reported.
fn reports_losses(role: &Role) -> Arc<dyn Observer> {
    let (number, judge) = (role.number, Mutex::new(Line::connect(&role.judge)));
    Arc::new(move |event: &Event| {
        let lost = match event {
            Event::NotExtended { left, .. } => left.is_zero(),
            Event::Lost { .. } => true,
            _ => false,
        };
        if lost {
            judge.lock().unwrap().ask(&format!("lost {number}"));
        }
        if matches!(event, Event::NotExtended { .. } | Event::Lost { .. }) {
            REPORTED.fetch_add(1, Ordering::SeqCst);
        }
    })
}

pub(crate) struct Client {
    role: Role,
    pub(crate) rng: fastrand::Rng,
    locks: LockManager,
    signals: PhaseSignals,
    judge: Line,
}

/// A hold, as the judge knows it.
pub(crate) struct Hold {
    pub(crate) guard: Guard,
    pub(crate) names: String,
    number: String,
    extends: bool,
}

impl Client {
    /// Asks for a lock once, and does something with it.
    fn turn(&mut self) {
        let Role {
            works,
            ttl,
            deaf,
            slow,
            ..
        } = &self.role;
        let work = Workload::of_now(works, *ttl, *slow);
        let extends = self.rng.u8(..4) == 0;
        // A renewal finds out what has been lost.
        let renew = self.rng.u8(..4) >= if *slow { 2 } else { 1 } && !deaf;
        // The judge may not expect its end at the ttl.
        let extended = renew || extends || *deaf;
        let wait = between(&mut self.rng, *ttl, 0.0, 3.0);
        let call = Call {
            renew,
            wait,
            patience: self.rng.u8(..4),
        };

        self.signals.enter(Phase::Acquire);
        let asked = boot();
        let taken = work.take(&self.locks, &mut self.rng, &call);
        let acquired = boot();
        self.signals.enter(Phase::Renewal);
        match taken {
            Ok(taken) => {
                let times = format!("{extended} {asked} {acquired}");
                let hold = self.claim(taken, extends, &times);
                work.work(self, &hold);
                self.end(hold);
            }
            Err(err) => {
                self.judge.ask(&format!("failed {}", kind_of(&err)));
                thread::sleep(between(&mut self.rng, self.role.ttl, 0.0, 0.02));
            }
        }
        self.signals.enter(Phase::Nothing);
    }

    fn claim(&mut self, taken: Taken, extends: bool, times: &str) -> Hold {
        let Role { number, ttl, .. } = &self.role;
        let Taken { guard, mode, names } = taken;
        let (token, ttl) = (guard.token().get(), nanos(*ttl));
        let lease = format!("lease {number} {mode} {names} {token} {ttl} {times}");
        let number = self.judge.ask(&lease);
        Hold {
            guard,
            names,
            number,
            extends,
        }
    }

    /// Registers; false if that was refused.
    pub(crate) fn register(&mut self, hold: &Hold) -> bool {
        self.look(hold);
        self.ask_about(hold, "register", "").is_some()
    }

    /// The version; `None` if it was refused.
    pub(crate) fn read(&mut self, hold: &Hold) -> Option<u64> {
        self.ask_about(hold, "read", "")
    }

    /// To all the resources of a hold in two steps; false if it was refused.
    pub(crate) fn pay(&mut self, hold: &Hold) -> bool {
        self.ask_about(hold, "pay", "").is_some()
    }

    /// Whoever is refused looks at its guard.
    fn ask_about(&mut self, hold: &Hold, what: &str, with: &str) -> Option<u64> {
        let answer = self.judge.ask(&format!("{what} {}{with}", hold.number));
        if answer == "stale" {
            self.look(hold);
            return None;
        }
        Some(answer.strip_prefix("ok ").unwrap().parse().unwrap())
    }

    /// Registers, reads, thinks, writes.
    pub(crate) fn update(&mut self, hold: &Hold) {
        if !self.register(hold) {
            return;
        }
        let careful = self.rng.bool();
        for _ in 0..self.rng.u8(1..=2) {
            let Some(version) = self.read(hold) else {
                return;
            };
            let valid = self.think(hold);
            if careful && !valid
                || self
                    .ask_about(hold, "write", &format!(" {version}"))
                    .is_none()
            {
                return;
            }
        }
    }

    /// Registers, reads, thinks, reads again.
    pub(crate) fn compare(&mut self, hold: &Hold) {
        if self.register(hold) && self.read(hold).is_some() {
            self.think(hold);
            self.read(hold);
            self.look(hold);
        }
    }

    /// Lets time pass; whether the guard was valid to the end.
    pub(crate) fn think(&mut self, hold: &Hold) -> bool {
        let length = match self.rng.u8(..40) {
            _ if self.role.deaf => (1.5, 2.5),
            // Long enough to be renewed.
            _ if self.signals.waits_for(Phase::Renewal) => (0.4, 0.9),
            0..=29 if self.role.slow => (0.3, 1.0),
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
            if hold.extends && next_extension <= now && !self.role.deaf {
                next_extension = now + nanos(self.role.ttl / 3);
                let _ = hold.guard.hold().extend(self.role.ttl);
            }
            thread::sleep(step.min(Duration::from_nanos(until - now)));
            valid = self.look(hold);
        }
    }

    /// Asks the guard, and tells the judge what it said.
    pub(crate) fn look(&mut self, hold: &Hold) -> bool {
        let before = boot();
        let remaining = hold.guard.hold().remaining();
        let after = boot();
        let remaining = if self.role.deaf {
            self.role.ttl / 2
        } else {
            remaining
        };
        self.judge.ask(&format!(
            "seen {} {before} {after} {}",
            hold.number,
            nanos(remaining)
        ));
        !remaining.is_zero()
    }

    fn end(&mut self, hold: Hold) {
        self.look(&hold);
        let Hold { guard, number, .. } = hold;
        self.judge.ask(&format!("releasing {number} {}", boot()));
        self.signals.enter(Phase::Release);
        let how = if self.rng.bool() {
            drop(guard);
            "dropped"
        } else {
            match guard.release() {
                Ok(_) | Err(ReleaseError::NotConfirmed { .. }) => "released",
                Err(ReleaseError::Lost(lost)) => how_lost(lost.reason),
                Err(_) => "lost",
            }
        };
        self.signals.enter(Phase::Nothing);
        self.judge.ask(&format!("ended {number} {how}"));
    }
}

fn how_lost(lost: LostReason) -> &'static str {
    match lost {
        LostReason::Expired | LostReason::LeaseOver => "expired",
        _ => "lost",
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
