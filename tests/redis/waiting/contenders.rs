//! Other processes that contend for the lock, and do what they are told.
//!
//! The ignored tests are those processes.

use std::{process, thread};

use devnodes::{Servers, eventually};
use quorlock::{Builder, LockManager};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::kinds::semaphore::rounds;
use crate::support::*;
use crate::waiting::lists::{NAME, wait_until_listed};

/// How soon a waiting process asks again: see [`far`](crate::waiting::lists::far) and
/// [`near`](crate::waiting::lists::near).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pauses {
    Far,
    Near,
}

fn options(urls: &[String], pauses: &str) -> Builder {
    let options = builder(urls).ttl(LONG);
    if pauses == "Far" {
        options.retry_delay(secs(60), secs(60))
    } else {
        options
    }
}

/// A process that contends for the lock [`NAME`]. Killed when dropped.
pub(crate) struct Contender(ChildProcess);

impl Contender {
    /// Starts the process; returns when it is connected to all servers.
    #[track_caller]
    fn start(servers: &Servers, pauses: Pauses) -> Contender {
        let mut child = child("waiting::contenders::child_that_obeys", &servers.urls());
        child.tell(&format!("{pauses:?}"));
        assert_eq!(child.hear(), "connected");
        Contender(child)
    }

    /// Starts one that waits for the lock, before all others: returns when it is listed on all servers.
    #[track_caller]
    pub(crate) fn first_in_line(servers: &Servers, pauses: Pauses) -> Contender {
        let mut head = Contender::start(servers, pauses);
        head.lock();
        wait_until_listed(servers, NAME, 1);
        head
    }

    /// Lets it call `lock`, and does not wait for that.
    pub(crate) fn lock(&mut self) {
        self.0.tell("lock");
    }

    /// Waits until it has the lock; returns the fencing token.
    #[track_caller]
    pub(crate) fn hear_held(&self) -> u64 {
        let said = self.0.hear();
        let token = said.strip_prefix("held ");
        let token = token.unwrap_or_else(|| panic!("not held: {said}"));
        token.parse().unwrap()
    }

    /// Lets it give the lock back; returns when it has.
    #[track_caller]
    pub(crate) fn release(&mut self) {
        self.0.tell("release");
        assert_eq!(self.0.hear(), "released");
    }

    /// Returns when the process is seen to run.
    #[track_caller]
    pub(crate) fn ping(&mut self) {
        self.0.tell("ping");
        assert_eq!(self.0.hear(), "pong");
    }

    /// SIGSTOP; returns when all its threads have stopped.
    #[track_caller]
    pub(crate) fn stop(&self) {
        self.0.signal(Signal::STOP);
        self.0.wait_until_stopped();
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.0.signal(Signal::CONT);
    }

    /// SIGKILL; returns when it is gone.
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        self.0.signal(Signal::KILL);
        assert!(!self.0.wait().success());
    }
}

/// A manager that is connected to all its nodes, without a lock that several such processes contend for.
fn connected_alone(options: Builder, nodes: usize) -> LockManager {
    let locks = options.build().unwrap();
    let guard = lock_in_the_end(&locks, &format!("warm-up of {}", process::id()));
    let nodes = u64::try_from(nodes).unwrap();
    eventually("all nodes are connected", || {
        nodes <= locks.stats().connections
    });
    drop(guard);
    locks
}

#[test]
#[ignore = "a process of another test"]
fn child_that_obeys() {
    let Some(urls) = parent_urls() else { return };
    let Some(pauses) = hear_parent() else { return };
    let locks = connected_alone(options(&urls, &pauses), urls.len());
    let (held, guards) = crossbeam_channel::unbounded();
    say("connected");

    while let Some(order) = hear_parent() {
        match order.as_str() {
            "lock" => {
                let (lock, held) = (locks.mutex(NAME), held.clone());
                thread::spawn(move || match lock.lock() {
                    Ok(guard) => {
                        let token = guard.fencing_token().get();
                        held.send(guard).unwrap();
                        say(format_args!("held {token}"));
                    }
                    Err(err) => say(err),
                });
            }
            "release" => {
                drop(guards.try_recv().unwrap());
                say("released");
            }
            "ping" => say("pong"),
            other => panic!("{other:?} is no order"),
        }
    }
    // The parent is gone. Nobody waits for what is under way here.
    process::exit(1);
}

/// What processes did that took the lock again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) won: u64,
    /// Of all ends.
    pub(crate) rounds: u64,
    /// How often a process got the lock before another one that had asked for it earlier.
    pub(crate) overtaken: usize,
}

/// Lets so many processes take the lock so many times each, and asserts that no two ever had it at once, and that none
/// had to wait for longer than a test's patience.
#[track_caller]
pub(crate) fn contend(servers: &Servers, processes: usize, sections: u64) -> Tally {
    let mut children = repeat(processes, || {
        let mut child = child("waiting::contenders::child_that_loops", &servers.urls());
        child.tell(&sections.to_string());
        child
    });
    for child in &children {
        assert_eq!(child.hear(), "connected");
    }
    children.iter_mut().for_each(ChildProcess::go_on);

    let mut tally = Tally::default();
    // When it asked, entered and left, of all.
    let mut stays = Vec::new();
    for child in &mut children {
        for _ in 0..sections {
            stays.push(numbers::<3>(&child.hear()));
        }
        let [won, rounds] = numbers(&child.hear());
        tally.won += won;
        tally.rounds += rounds;
        assert!(child.wait().success());
    }

    stays.sort_unstable_by_key(|[_, enter, _]| *enter);
    for (i, later @ [asked, enter, leave]) in stays.iter().enumerate() {
        assert!(asked <= enter && enter < leave, "{later:?}");
        let overtakes = |earlier: &&[u64; 3]| later[0] < earlier[0];
        tally.overtaken += stays[..i].iter().filter(overtakes).count();
    }
    for pair in stays.windows(2) {
        let is_alone = pair[0][2] < pair[1][1];
        assert!(is_alone, "two had the lock at once: {pair:?} of {stays:?}");
    }
    tally
}

#[track_caller]
fn numbers<const N: usize>(said: &str) -> [u64; N] {
    let numbers: Result<Vec<u64>, _> = said.split(' ').map(str::parse).collect();
    let numbers = numbers.ok().and_then(|it| it.try_into().ok());
    numbers.unwrap_or_else(|| panic!("{N} numbers were expected, and it says: {said}"))
}

/// A clock that all processes share.
fn nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

#[test]
#[ignore = "a process of another test"]
fn child_that_loops() {
    const WORK_NANOS: u64 = 200_000;
    let Some(urls) = parent_urls() else { return };
    let Some(sections) = hear_parent() else {
        return;
    };
    let locks = connected_alone(builder(&urls).ttl(LONG), urls.len());
    let lock = locks.mutex(NAME);
    say("connected");
    wait_for_parent();

    let (before, rounds_before) = (locks.stats(), rounds(&locks));
    for _ in 0..sections.parse::<u64>().unwrap() {
        let asked = nanos();
        let guard = lock.lock().unwrap();
        let enter = nanos();
        while nanos() < enter + WORK_NANOS {
            thread::yield_now();
        }
        let leave = nanos();
        drop(guard);
        say(format_args!("{asked} {enter} {leave}"));
    }
    let after = locks.stats();
    let rounds = rounds(&locks) - rounds_before;
    say(format_args!(
        "{} {rounds}",
        after.rounds_won - before.rounds_won
    ));
}
