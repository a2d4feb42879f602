//! The measurements.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use quorlock::error::NodeCheck;
use quorlock::{CancelHandle, LockManager};

use crate::bench::times::Times;
use crate::exit::Failed;

/// A holder keeps the lock for this time, so that the other client waits by then.
const HELD_FOR_PAIRS: u32 = 3;
const HELD_FOR: Duration = Duration::from_millis(1);

/// One part of the measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    stop: &'a CancelHandle,
    until: Instant,
}

/// The round trips to a server.
pub(crate) struct Node {
    pub(crate) node: String,
    pub(crate) address: String,
    pub(crate) times: Times,
    pub(crate) failure: Option<String>,
}

/// Locks with their releases.
pub(crate) struct Pairs {
    pub(crate) times: Times,
    pub(crate) per_second: f64,
}

impl<'a> Part<'a> {
    /// Begins now. `stop` ends it; the first measurement is always complete.
    pub(crate) fn begin(stop: &'a CancelHandle, time: Duration) -> Part<'a> {
        let now = now();
        Part {
            stop,
            until: now.checked_add(time).unwrap_or(now),
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.is_cancelled() && now() < self.until
    }
}

/// Measures round trips to all servers.
pub(crate) fn round_trips(locks: &LockManager, part: Part<'_>) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    loop {
        let checks = locks.check_nodes();
        if nodes.is_empty() {
            let node = |it: &NodeCheck| Node {
                node: it.node.to_string(),
                address: it.address.to_string(),
                times: Times::default(),
                failure: None,
            };
            nodes = checks.iter().map(node).collect();
        }
        for (node, check) in nodes.iter_mut().zip(checks) {
            match check.round_trip {
                Some(time) => node.times.add(time),
                None => node.failure = check.failure.map(|it| it.to_string()),
            }
        }
        if !part.goes_on() {
            return nodes;
        }
    }
}

/// Locks and releases, each name in its own thread.
pub(crate) fn pairs(
    locks: &LockManager,
    names: &[String],
    part: Part<'_>,
) -> Result<Pairs, Failed> {
    let began = now();
    let times = together(
        part.stop,
        names.iter().map(|name| move || pairs_of(locks, name, part)),
    )?;
    let seconds = now().duration_since(began).as_secs_f64();
    Ok(Pairs {
        // Far below 2^53.
        per_second: times.count() as f64 / seconds,
        times,
    })
}

fn pairs_of(locks: &LockManager, name: &str, part: Part<'_>) -> Result<Times, Failed> {
    let (lock, mut times) = (locks.mutex(name).cancelled_by(part.stop), Times::default());
    loop {
        let began = now();
        let guard = lock.lock()?;
        guard.release()?;
        times.add(now().duration_since(began));
        if !part.goes_on() {
            return Ok(times);
        }
    }
}

/// Hands a lock over between clients. A time is from the call to release until the other client has the lock.
pub(crate) fn hand_over(
    clients: [&LockManager; 2],
    name: &str,
    pair: Duration,
    part: Part<'_>,
) -> Result<Times, Failed> {
    let held_for = pair.saturating_mul(HELD_FOR_PAIRS).max(HELD_FOR);
    let (released, handed_over) = (Mutex::new(None), AtomicBool::new(false));
    let one = |locks: &LockManager| {
        let (lock, mut times) = (locks.mutex(name).cancelled_by(part.stop), Times::default());
        loop {
            let asked = now();
            let guard = lock.lock()?;
            let got = now();
            // Only the holder is here. A release before its call to lock was no hand-over.
            let last: Option<Instant> = released
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(at) = last.filter(|at| asked < *at) {
                times.add(got.duration_since(at));
                handed_over.store(true, Ordering::SeqCst);
            }
            thread::park_timeout(held_for);
            *released.lock().unwrap_or_else(PoisonError::into_inner) = Some(now());
            guard.release()?;
            // At least one hand-over: the other client may be late.
            if !part.goes_on() && (handed_over.load(Ordering::SeqCst) || part.stop.is_cancelled()) {
                return Ok(times);
            }
        }
    };
    together(part.stop, clients.map(|it| move || one(it)))
}

/// Measures in parallel. The first failure stops the others.
fn together(
    stop: &CancelHandle,
    work: impl IntoIterator<Item = impl FnOnce() -> Result<Times, Failed> + Send>,
) -> Result<Times, Failed> {
    let (sender, done) = channel();
    thread::scope(|scope| {
        for work in work {
            let sender = sender.clone();
            let run = move || {
                let times = work();
                let has_failed = times.is_err();
                // Sent before the others fail in turn.
                let _ = sender.send(times);
                if has_failed {
                    stop.cancel();
                }
            };
            let thread = thread::Builder::new()
                .name("bench".into())
                .spawn_scoped(scope, run);
            thread.inspect_err(|_| stop.cancel())?;
        }
        drop(sender);
        let mut all = Times::default();
        for times in done {
            all.add_all(&times?);
        }
        Ok(all)
    })
}

#[expect(clippy::disallowed_methods, reason = "a program that measures")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
