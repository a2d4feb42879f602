//! The clients, behind one face.

mod redlock;
mod rslock;

use std::io;
use std::time::Duration;

use crate::measure::{LockReport, PairsReport, SectionsReport, Stopwatch, ThreadsReport};
use crate::request::Job;

/// A client with its connections, where it keeps any.
pub(crate) enum Client {
    /// `rslock`, asynchronous, on a tokio runtime.
    Rslock(rslock::Rslock),
    /// `redlock`, synchronous; it connects anew for each command to each server.
    Redlock(redlock::Redlock),
}

impl Client {
    /// The client called `name` for the servers at `urls`.
    ///
    /// # Errors
    ///
    /// If there is no such client, a URL is not understood or threads cannot be started.
    pub(crate) fn open(name: &str, urls: Vec<String>) -> io::Result<Self> {
        match name {
            "rslock-mt" => rslock::Rslock::multi_thread(urls).map(Self::Rslock),
            "rslock-ct" => rslock::Rslock::current_thread(urls).map(Self::Rslock),
            "redlock" => redlock::Redlock::new(urls).map(Self::Redlock),
            _ => Err(io::Error::other(
                "expected rslock-mt, rslock-ct or redlock, then URLs",
            )),
        }
    }

    /// Runs `n` pairs on `name`, one after the other.
    pub(crate) fn pairs(&self, n: usize, ttl: Duration, name: &str) -> PairsReport {
        let watch = Stopwatch::start();
        let tally = match self {
            Self::Rslock(client) => client.pairs(n, ttl, name),
            Self::Redlock(client) => client.pairs(n, ttl, name),
        };
        let (_, cpu) = watch.read();
        PairsReport { tally, cpu }
    }

    /// Runs pairs on each of `threads` threads or tasks for `window`, a name each.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub(crate) fn threads(
        &self,
        threads: usize,
        window: Duration,
        ttl: Duration,
        name: &str,
    ) -> io::Result<ThreadsReport> {
        let watch = Stopwatch::start();
        let tally = match self {
            Self::Rslock(client) => client.threads(threads, window, ttl, name),
            Self::Redlock(client) => client.threads(threads, window, ttl, name)?,
        };
        let (elapsed, cpu) = watch.read();
        Ok(ThreadsReport {
            tally,
            elapsed,
            cpu,
        })
    }

    /// Locks `name`, however long it takes, and keeps it until [`unlock`](Self::unlock).
    ///
    /// # Errors
    ///
    /// If it cannot be locked, or the client is not one whose waiting is compared.
    pub(crate) fn lock(&mut self, ttl: Duration, name: String) -> io::Result<LockReport> {
        self.waiting()?.lock(ttl, name)
    }

    /// Releases what was locked `after` a time; returns when the release was called.
    ///
    /// # Errors
    ///
    /// If nothing was locked.
    pub(crate) fn unlock(&mut self, after: Duration) -> io::Result<u64> {
        self.waiting()?.unlock(after)
    }

    /// Runs critical sections in each of `tasks` tasks.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock).
    pub(crate) fn sections(&mut self, tasks: usize, job: &Job) -> io::Result<SectionsReport> {
        let client = self.waiting()?;
        let watch = Stopwatch::start();
        let sections = client.sections(tasks, job);
        let (_, cpu) = watch.read();
        Ok(SectionsReport { sections, cpu })
    }

    /// The client, if it is one that can wait for a lock.
    fn waiting(&mut self) -> io::Result<&mut rslock::Rslock> {
        match self {
            Self::Rslock(client) => Ok(client),
            Self::Redlock(_) => Err(io::Error::other(
                "redlock is not compared where locks are waited for",
            )),
        }
    }
}
