//! Workers that take a lock, stay inside for a while, give it back, and ask again at once; and what their turns add up to.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use super::Result;
use super::sections::Section;
use super::stats::{Samples, shared_clock};

/// The turns of each worker within one window.
pub(crate) struct Turns {
    workers: Vec<Vec<Section>>,
    elapsed: Duration,
}

/// Lets `n` threads take turns while the `window` is open. `turn` is given the worker's number and what to do inside: it takes
/// the lock, calls that, and releases.
pub(crate) fn take_turns(
    n: usize,
    window: Duration,
    inside: Duration,
    turn: impl Fn(usize, &mut dyn FnMut()) -> Result + Sync,
) -> Result<Turns> {
    let begin = Barrier::new(n);
    let start = shared_clock();
    let end = start + u64::try_from(window.as_nanos())?;
    let work = |worker| -> Result<Vec<Section>> {
        let mut sections = Vec::new();
        begin.wait();
        while shared_clock() < end {
            let called = shared_clock();
            turn(worker, &mut || {
                let entered = shared_clock();
                thread::sleep(inside);
                sections.push(Section {
                    called,
                    entered,
                    left: shared_clock(),
                });
            })?;
        }
        Ok(sections)
    };
    let workers = thread::scope(|scope| {
        let work = |worker| work(worker).map_err(|it| it.to_string());
        let threads: Vec<_> = (0..n)
            .map(|worker| scope.spawn(move || work(worker)))
            .collect();
        let joined = threads
            .into_iter()
            .map(|it| Ok(it.join().map_err(|_| "a worker panicked")??));
        joined.collect::<Result<Vec<_>>>()
    })?;
    Ok(Turns {
        workers,
        elapsed: Duration::from_nanos(shared_clock() - start),
    })
}

impl Turns {
    /// How many of them those workers had.
    pub(crate) fn count(&self, workers: impl Fn(usize) -> bool) -> usize {
        self.of(workers).count()
    }

    pub(crate) fn per_second(&self, workers: impl Fn(usize) -> bool) -> f64 {
        self.count(workers) as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn waits(&self, workers: impl Fn(usize) -> bool) -> Samples {
        let mut waits = Samples::default();
        self.of(workers)
            .for_each(|it| waits.push_ns(it.entered - it.called));
        waits
    }

    /// How many of those workers were inside, on average.
    pub(crate) fn inside(&self, workers: impl Fn(usize) -> bool) -> f64 {
        self.of(workers).map(|it| it.left - it.entered).sum::<u64>() as f64
            / self.elapsed.as_nanos() as f64
    }

    /// Percent of the time in which at least one of those workers was inside.
    pub(crate) fn held_percent(&self, workers: impl Fn(usize) -> bool) -> f64 {
        let mut sections: Vec<&Section> = self.of(workers).collect();
        sections.sort_unstable_by_key(|it| it.entered);
        let (mut held, mut until) = (0, 0);
        for section in sections {
            held += section.left.saturating_sub(section.entered.max(until));
            until = until.max(section.left);
        }
        100.0 * held as f64 / self.elapsed.as_nanos() as f64
    }

    fn of(&self, workers: impl Fn(usize) -> bool) -> impl Iterator<Item = &Section> {
        let chosen = self
            .workers
            .iter()
            .enumerate()
            .filter(move |(worker, _)| workers(*worker));
        chosen.flat_map(|(_, sections)| sections)
    }
}
