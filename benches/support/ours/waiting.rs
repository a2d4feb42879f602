//! Threads that want the same lock.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use quorlock::{AcquireError, CancelHandle};

use super::Ours;
use crate::support::Result;
use crate::support::sections::{Counts, Job, Report, Section};
use crate::support::stats::{Samples, process_cpu, shared_clock, sleep_until};

/// So that a thousand threads are not a question of memory.
const STACK: usize = 256 * 1024;
/// How long waiters may take to return once they were told to.
const PATIENCE: Duration = Duration::from_secs(30);

impl Ours {
    /// Hands the lock `name` to and fro between two threads, `n` times; from the drop of the guard in one to the
    /// return of `lock` in the other, which has been waiting since the holder began its `hold`.
    pub(crate) fn hand_overs(
        &self,
        n: usize,
        name: &str,
        hold: impl Fn() -> Duration + Sync,
    ) -> Result<Samples> {
        let ((to_first, from_second), (to_second, from_first)) = (mpsc::channel(), mpsc::channel());
        let (first, second) = thread::scope(|scope| {
            let first = scope.spawn(|| self.to_and_fro(n, name, 0, &hold, to_second, from_second));
            let second = scope.spawn(|| self.to_and_fro(n, name, 1, &hold, to_first, from_first));
            (first.join(), second.join())
        });
        let panicked = |_| "a thread panicked";
        let (first, second) = match (first.map_err(panicked)?, second.map_err(panicked)?) {
            (Ok(first), Ok(second)) => (first, second),
            (Err(Some(err)), _) | (_, Err(Some(err))) => return Err(err.into()),
            _ => return Err("a thread hung up without a reason".into()),
        };
        let mut samples = Samples::default();
        for (turn, (first, second)) in first.into_iter().zip(second).enumerate() {
            let (released, locked) = if turn % 2 == 0 {
                (first, second)
            } else {
                (second, first)
            };
            samples.push_ns(
                locked
                    .checked_sub(released)
                    .ok_or("locked before the holder had released")?,
            );
        }
        Ok(samples)
    }

    /// One of the two threads: when it released, in its turns, and had locked, in the other's.
    ///
    /// The waiter tells the holder that it is about to lock, and that it has. Without the latter, the holder might be
    /// back in the next turn and take the lock from under its nose.
    ///
    /// # Errors
    ///
    /// Why a lock was not taken, or nothing if the other thread has hung up, as it does when it fails.
    fn to_and_fro(
        &self,
        n: usize,
        name: &str,
        own: usize,
        hold: &impl Fn() -> Duration,
        tell: Sender<()>,
        hear: Receiver<()>,
    ) -> std::result::Result<Vec<u64>, Option<AcquireError>> {
        let mutex = self.mutex(name);
        let tell = || tell.send(()).map_err(|_| None);
        let hear = || hear.recv().map_err(|_| None);
        let mut times = Vec::with_capacity(n);
        let mut guard = None;
        if own == 0 {
            guard = Some(mutex.lock()?);
            tell()?;
        } else {
            hear()?;
        }
        for turn in 0..n {
            if turn % 2 == own {
                hear()?;
                thread::sleep(hold());
                times.push(shared_clock());
                drop(guard.take());
                hear()?;
            } else {
                tell()?;
                guard = Some(mutex.lock()?);
                times.push(shared_clock());
                tell()?;
            }
        }
        Ok(times)
    }

    /// Acquires `n` times when nobody else wants the lock, each after a `rest`; the release is not in the samples.
    pub(crate) fn acquires(
        &self,
        n: usize,
        name: &str,
        rest: impl Fn() -> Duration,
    ) -> Result<Samples> {
        let mutex = self.mutex(name);
        let mut samples = Samples::default();
        for _ in 0..n {
            thread::sleep(rest());
            let called = shared_clock();
            let guard = mutex.try_lock()?;
            samples.push_ns(shared_clock() - called);
            guard.release()?;
        }
        Ok(samples)
    }

    /// Has `threads` threads do `job`.
    pub(crate) fn sections(&self, threads: usize, job: &Job) -> io::Result<Report> {
        let (before, cpu) = (self.counts(), process_cpu());
        let mut all = Report::default();
        thread::scope(|scope| {
            let threads = (0..threads)
                .map(|_| thread::Builder::new().spawn_scoped(scope, || self.sections_of_one(job)))
                .collect::<io::Result<Vec<_>>>()?;
            for thread in threads {
                all.merge(
                    thread
                        .join()
                        .map_err(|_| io::Error::other("a thread panicked"))?,
                );
            }
            io::Result::Ok(())
        })?;
        let counts = self.counts();
        all.counts = Some(Counts {
            commands: counts.commands - before.commands,
            rounds: counts.rounds - before.rounds,
            won: counts.won - before.won,
        });
        all.cpu = process_cpu().saturating_sub(cpu);
        Ok(all)
    }

    fn sections_of_one(&self, job: &Job) -> Report {
        let mutex = self.mutex(&job.name);
        let mut report = Report::default();
        let mut sections = Vec::new();
        sleep_until(job.begin);
        loop {
            let called = shared_clock();
            if job.end <= called {
                break;
            }
            let guard = match mutex.lock() {
                Ok(guard) => guard,
                Err(err) => {
                    report.note(&err);
                    thread::sleep(job.inside);
                    continue;
                }
            };
            let entered = shared_clock();
            if entered < job.end {
                thread::sleep(job.inside);
            }
            sections.push(Section {
                called,
                entered,
                left: shared_clock(),
            });
            if let Err(err) = guard.release() {
                report.note(&err);
            }
        }
        report.workers.push(sections);
        report
    }

    /// Starts `n` threads that wait for `name(i)`, each for its own `i`, and returns when they have all begun to.
    pub(crate) fn waiters(&self, n: usize, name: impl Fn(usize) -> String) -> io::Result<Waiters> {
        let cancel = CancelHandle::new();
        let (sender, ends) = mpsc::channel();
        let begun = Arc::new(AtomicUsize::new(0));
        for i in 0..n {
            let mutex = self.mutex(&name(i)).cancelled_by(&cancel);
            let (sender, begun) = (sender.clone(), Arc::clone(&begun));
            thread::Builder::new().stack_size(STACK).spawn(move || {
                begun.fetch_add(1, Ordering::Relaxed);
                let end = match mutex.lock() {
                    Err(AcquireError::Cancelled) => Ok(()),
                    Err(err) => Err(err.to_string()),
                    Ok(_) => Err("got a lock that somebody else holds".to_owned()),
                };
                // Nobody listens any more if the bench has given up.
                drop(sender.send(end));
            })?;
        }
        while begun.load(Ordering::Relaxed) < n {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Waiters { n, cancel, ends })
    }
}

/// Threads in `lock`.
pub(crate) struct Waiters {
    n: usize,
    cancel: CancelHandle,
    ends: Receiver<std::result::Result<(), String>>,
}

impl Waiters {
    /// Cancels them all, and returns when all are out.
    ///
    /// # Errors
    ///
    /// If one does not return, or had returned before, or returns anything but that it was cancelled.
    pub(crate) fn cancel(self) -> Result {
        if let Ok(early) = self.ends.try_recv() {
            return Err(format!("a waiter did not wait: {early:?}").into());
        }
        self.cancel.cancel();
        for out in 0..self.n {
            let end = self.ends.recv_timeout(PATIENCE);
            end.map_err(|err| format!("{out} of {} waiters returned, then none: {err}", self.n))??;
        }
        Ok(())
    }
}
