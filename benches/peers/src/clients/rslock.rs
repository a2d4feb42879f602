//! `rslock` on a tokio runtime of two threads, or on the calling thread alone.

use std::io;
use std::time::{Duration, Instant};

use rslock::LockManager;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::measure::Tally;

/// One manager, shared by all tasks as its documentation shows: one connection per server.
pub(crate) struct Rslock {
    runtime: Runtime,
    manager: LockManager,
}

impl Rslock {
    /// On a runtime with two worker threads.
    pub(crate) fn multi_thread(urls: Vec<String>) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Self::new(runtime, urls)
    }

    /// On a runtime that has no thread of its own.
    pub(crate) fn current_thread(urls: Vec<String>) -> io::Result<Self> {
        Self::new(Builder::new_current_thread().enable_all().build()?, urls)
    }

    fn new(runtime: Runtime, urls: Vec<String>) -> io::Result<Self> {
        let clients: Result<Vec<_>, _> = urls.into_iter().map(redis::Client::open).collect();
        let mut manager = LockManager::from_clients(clients.map_err(io::Error::other)?);
        // One try: a refused pair is counted, not hidden behind a random sleep. The delay goes
        // unused, but the crate draws from `0..delay`, so that it must not be zero.
        manager.set_retry(1, Duration::from_millis(1));
        Ok(Self { runtime, manager })
    }

    pub(crate) fn pairs(&self, n: usize, ttl: Duration, name: &str) -> Tally {
        // In a task, not in `block_on` itself: there each reply would have to wake this thread from
        // the workers, which costs the multi-thread runtime time that its users do not pay.
        let task = self.spawn(ttl, name.to_owned(), move |done| done == n);
        self.runtime.block_on(task).unwrap_or_default()
    }

    pub(crate) fn threads(&self, n: usize, window: Duration, ttl: Duration, name: &str) -> Tally {
        let start = Instant::now();
        let tasks: Vec<_> =
            (0..n).map(|i| self.spawn(ttl, format!("{name}:{i}"), move |_| window <= start.elapsed())).collect();
        self.runtime.block_on(async {
            let mut all = Tally::default();
            for task in tasks {
                all.merge(task.await.unwrap_or_default());
            }
            all
        })
    }

    /// A task that runs pairs until `over` says so; `over` is told how many it has run.
    fn spawn(&self, ttl: Duration, name: String, over: impl Fn(usize) -> bool + Send + 'static) -> JoinHandle<Tally> {
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
