//! `rslock` on a tokio runtime of two threads, or on the calling thread alone.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rslock::{LockGuard, LockManager};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::measure::{LockReport, Section, Sections, Tally, shared_clock};
use crate::request::Job;

/// One manager, shared by all tasks as its documentation shows: one connection per server.
pub(crate) struct Rslock {
    runtime: Runtime,
    manager: LockManager,
    /// The same, with the retries that it comes with.
    patient: LockManager,
    locked: Option<LockGuard>,
}

impl Rslock {
    /// On a runtime with two worker threads.
    pub(crate) fn multi_thread(urls: Vec<String>) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        Self::new(runtime, urls)
    }

    /// On a runtime that has no thread of its own.
    pub(crate) fn current_thread(urls: Vec<String>) -> io::Result<Self> {
        Self::new(Builder::new_current_thread().enable_all().build()?, urls)
    }

    fn new(runtime: Runtime, urls: Vec<String>) -> io::Result<Self> {
        let clients: Result<Vec<_>, _> = urls.into_iter().map(redis::Client::open).collect();
        let patient = LockManager::from_clients(clients.map_err(io::Error::other)?);
        let mut manager = patient.clone();
        // One try: a refused pair is counted, not hidden behind a random sleep. The delay goes
        // unused, but the crate draws from `0..delay`, so that it must not be zero.
        manager.set_retry(1, Duration::from_millis(1));
        Ok(Self {
            runtime,
            manager,
            patient,
            locked: None,
        })
    }

    pub(crate) fn pairs(&self, n: usize, ttl: Duration, name: &str) -> Tally {
        // In a task, not in `block_on` itself: there each reply would have to wake this thread from
        // the workers, which costs the multi-thread runtime time that its users do not pay.
        let task = self.spawn(ttl, name.to_owned(), move |done| done == n);
        self.runtime.block_on(task).unwrap_or_default()
    }

    pub(crate) fn threads(&self, n: usize, window: Duration, ttl: Duration, name: &str) -> Tally {
        let start = Instant::now();
        let tasks: Vec<_> = (0..n)
            .map(|i| {
                self.spawn(ttl, format!("{name}:{i}"), move |_| {
                    window <= start.elapsed()
                })
            })
            .collect();
        self.runtime.block_on(async {
            let mut all = Tally::default();
            for task in tasks {
                all.merge(task.await.unwrap_or_default());
            }
            all
        })
    }

    /// Locks, however long it takes.
    pub(crate) fn lock(&mut self, ttl: Duration, name: String) -> io::Result<LockReport> {
        let manager = self.patient.clone();
        // In a task for the same reason as `pairs`.
        let task = self.runtime.spawn(async move {
            let called = shared_clock();
            let guard = manager.acquire(name.as_str(), ttl).await;
            (
                guard,
                LockReport {
                    called,
                    at: shared_clock(),
                },
            )
        });
        let (guard, report) = self.runtime.block_on(task)?;
        self.locked = Some(guard.map_err(io::Error::other)?);
        Ok(report)
    }

    /// Releases what was locked; returns when it began to.
    pub(crate) fn unlock(&mut self, after: Duration) -> io::Result<u64> {
        let guard = self
            .locked
            .take()
            .ok_or_else(|| io::Error::other("nothing is locked"))?;
        thread::sleep(after);
        let task = self.runtime.spawn(async move {
            let called = shared_clock();
            guard.release().await;
            called
        });
        Ok(self.runtime.block_on(task)?)
    }

    pub(crate) fn sections(&self, tasks: usize, job: &Job) -> Sections {
        thread::sleep(Duration::from_nanos(
            job.begin.saturating_sub(shared_clock()),
        ));
        let task = || {
            self.runtime
                .spawn(sections(self.patient.clone(), job.clone()))
        };
        let tasks: Vec<_> = (0..tasks).map(|_| task()).collect();
        self.runtime.block_on(async {
            let mut all = Sections::default();
            for task in tasks {
                match task.await {
                    Ok(sections) => all.merge(sections),
                    Err(err) => all.note(&err),
                }
            }
            all
        })
    }

    /// A task that runs pairs until `over` says so; `over` is told how many it has run.
    fn spawn(
        &self,
        ttl: Duration,
        name: String,
        over: impl Fn(usize) -> bool + Send + 'static,
    ) -> JoinHandle<Tally> {
        let manager = self.manager.clone();
        self.runtime.spawn(async move {
            let mut tally = Tally::default();
            for done in 0.. {
                if over(done) {
                    break;
                }
                let start = Instant::now();
                let acquired = match manager.lock(name.as_str(), ttl).await {
                    Ok(lock) => {
                        manager.unlock(&lock).await;
                        true
                    }
                    Err(_) => false,
                };
                tally.enter(start, acquired);
            }
            tally
        })
    }
}

async fn sections(manager: LockManager, job: Job) -> Sections {
    let mut all = Sections::default();
    let mut sections = Vec::new();
    loop {
        let called = shared_clock();
        if job.end <= called {
            break;
        }
        match manager.acquire(job.name.as_str(), job.ttl).await {
            Ok(guard) => {
                let entered = shared_clock();
                if entered < job.end {
                    // Blocks a thread of the runtime, but never more than one: there is one lock. A timer of tokio's
                    // would make twice a millisecond of it.
                    thread::sleep(job.inside);
                }
                sections.push(Section {
                    called,
                    entered,
                    left: shared_clock(),
                });
                guard.release().await;
            }
            Err(err) => all.note(&err),
        }
    }
    all.tasks.push(sections);
    all
}
