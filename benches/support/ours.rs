//! This crate, as its users call it. Only this file and what is below it name `quorlock`.

mod kinds;
mod threads;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quorlock::observer::Event;
use quorlock::{Builder, LockManager, Mutex};

use super::Result;
use super::sections::Counts;
use super::stats::{Batch, process_cpu};

pub(crate) use quorlock::LockGuard as Guard;

/// As the peers' and the floor's.
const TTL: Duration = Duration::from_secs(10);
/// New servers have no vote for one ttl.
const FIRST_LOCK: Duration = Duration::from_secs(30);

/// A manager that can lock.
pub(crate) struct Ours {
    locks: LockManager,
}

impl Ours {
    /// Builds a manager, and waits until the nodes vote.
    pub(crate) fn open(urls: &[String]) -> Result<Self> {
        Self::ready(builder(urls).build()?)
    }

    /// The same, with an observer that counts events.
    pub(crate) fn open_observed(urls: &[String]) -> Result<Self> {
        let counts: [AtomicU64; 4] = Default::default();
        let counting = move |event: &Event| {
            let kind = match event {
                Event::Acquired { .. } => 0,
                Event::Released { .. } => 1,
                Event::NodeReply { .. } => 2,
                _ => 3,
            };
            counts[kind].fetch_add(1, Ordering::Relaxed);
        };
        Self::ready(builder(urls).observer(Arc::new(counting)).build()?)
    }

    fn ready(locks: LockManager) -> Result<Self> {
        let ours = Self { locks };
        let start = Instant::now();
        while let Err(err) = ours.pair("bench:first") {
            if FIRST_LOCK < start.elapsed() {
                return Err(err);
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(ours)
    }

    pub(crate) fn mutex(&self, name: &str) -> Mutex {
        self.locks.mutex(name)
    }

    /// Acquires, tried once, and releases; waits for the quorum both times.
    fn pair(&self, name: &str) -> Result {
        self.locks.mutex(name).try_lock()?.release()?;
        Ok(())
    }

    /// Runs `n` pairs on `name`, one after the other.
    pub(crate) fn pairs(&self, n: usize, name: &str) -> Batch {
        batch(n, || self.pair(name))
    }

    /// Acquires `n` locks and keeps them.
    pub(crate) fn hold(&self, n: usize, name: &str) -> Result<Vec<Guard>> {
        let mut held = Vec::with_capacity(n);
        for i in 0..n {
            held.push(self.locks.mutex(format!("{name}:{i}")).try_lock()?);
        }
        Ok(held)
    }

    /// How many of `held` are still held, by their own account.
    pub(crate) fn valid(held: &[Guard]) -> usize {
        held.iter().filter(|guard| guard.is_valid()).count()
    }

    /// What the manager has done so far.
    pub(crate) fn counts(&self) -> Counts {
        let stats = self.locks.stats();
        let rounds = stats.rounds_won
            + stats.rounds_held
            + stats.rounds_without_quorum
            + stats.rounds_too_late;
        Counts {
            commands: stats.commands,
            rounds,
            won: stats.rounds_won,
        }
    }

    /// Locks whose hold ended before their guard was dropped.
    pub(crate) fn lost(&self) -> u64 {
        self.locks.stats().locks_lost
    }
}

fn builder(urls: &[String]) -> Builder {
    // The servers were started a moment ago.
    LockManager::builder(urls.to_vec())
        .ttl(TTL)
        .quarantine(false)
}

/// Runs `n` pairs, one after the other.
fn batch(n: usize, pair: impl Fn() -> Result) -> Batch {
    let mut batch = Batch::default();
    let cpu = process_cpu();
    for _ in 0..n {
        let start = Instant::now();
        match pair() {
            Ok(()) => batch.samples.push(start.elapsed()),
            Err(_) => batch.failed += 1,
        }
    }
    batch.cpu = process_cpu().saturating_sub(cpu);
    batch
}

/// Locks once, as a program does that leaves all options as they are: when it began, and when the manager was built, the
/// lock taken, released, and everything ended.
pub(crate) fn once(urls: &[String], name: &str) -> Result<[Instant; 5]> {
    let begin = Instant::now();
    let locks = LockManager::builder(urls.to_vec()).build()?;
    let built = Instant::now();
    let guard = locks.mutex(name).try_lock_for(FIRST_LOCK)?;
    let locked = Instant::now();
    guard.release()?;
    let released = Instant::now();
    drop(locks);
    Ok([begin, built, locked, released, Instant::now()])
}
