//! The measurements.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use quorlock::{AcquireError, CancelHandle, LockManager, ReleaseError};

use crate::bench::times::Times;
use crate::exit::{Exit, Failed};

/// A holder keeps the lock for this time, so that the other client waits by then.
const HELD_FOR_PAIRS: u32 = 3;
const HELD_FOR: Duration = Duration::from_millis(1);

/// One part of the measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    stop: &'a CancelHandle,
    until: Instant,
}

/// The end of a failed measurement.
pub(crate) enum Ended {
    Cancelled,
    Failed(Failed),
}

impl From<AcquireError> for Ended {
    fn from(err: AcquireError) -> Ended {
        if matches!(err, AcquireError::Cancelled { .. }) {
            Ended::Cancelled
        } else {
            Ended::Failed(err.into())
        }
    }
}

impl From<ReleaseError> for Ended {
    fn from(err: ReleaseError) -> Ended {
        let exit = if matches!(err, ReleaseError::Lost(_)) {
            Exit::LOST
        } else {
            Exit::NO_QUORUM
        };
        Ended::Failed(Failed::new(exit, err))
    }
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
            let node = |(node, address)| Node {
                node,
                address,
                times: Times::default(),
                failure: None,
            };
            nodes = checks
                .iter()
                .map(|it| node((it.node.to_string(), it.address.to_string())))
                .collect();
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
pub(crate) fn pairs(locks: &LockManager, names: &[String], part: Part<'_>) -> Result<Pairs, Ended> {
    let began = now();
    let times = together(
        part.stop,
        names.iter().map(|name| move || pairs_of(locks, name, part)),
    )?;
    let mut all = Times::default();
    times.iter().for_each(|it| all.add_all(it));
    let seconds = now().duration_since(began).as_secs_f64();
    // Far below 2^53.
    Ok(Pairs {
        per_second: if seconds > 0.0 {
            all.count() as f64 / seconds
        } else {
            0.0
        },
        times: all,
    })
}

fn pairs_of(locks: &LockManager, name: &str, part: Part<'_>) -> Result<Times, Ended> {
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
) -> Result<Times, Ended> {
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
    let mut all = Times::default();
    together(part.stop, clients.map(|it| move || one(it)))?
        .iter()
        .for_each(|it| all.add_all(it));
    Ok(all)
}

/// Runs the work in parallel. A failure stops the others.
fn together<T: Send>(
    stop: &CancelHandle,
    work: impl IntoIterator<Item = impl FnOnce() -> Result<T, Ended> + Send>,
) -> Result<Vec<T>, Ended> {
    thread::scope(|scope| {
        let started = work.into_iter().map(|work| {
            let run = move || work().inspect_err(|_| stop.cancel());
            let thread = thread::Builder::new()
                .name("bench".into())
                .spawn_scoped(scope, run);
            thread.inspect_err(|_| stop.cancel()).map_err(Failed::from)
        });
        let threads: Vec<_> = started.collect();
        let mut all = Ok(Vec::new());
        for thread in threads {
            let panicked = |_| {
                Err(Ended::Failed(Failed::new(
                    Exit::INTERNAL,
                    "a thread has panicked",
                )))
            };
            let done = thread
                .map_err(Ended::Failed)
                .and_then(|it| it.join().unwrap_or_else(panicked));
            all = match (all, done) {
                (Ok(mut all), Ok(done)) => {
                    all.push(done);
                    Ok(all)
                }
                // It has stopped the others.
                (Err(Ended::Cancelled) | Ok(_), Err(err)) => Err(err),
                (Err(err), _) => Err(err),
            };
        }
        all
    })
}

#[expect(clippy::disallowed_methods, reason = "a program that measures")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
