//! `redlock`, the synchronous one.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use redlock::RedLock;

use crate::measure::Tally;

/// The crate's manager. It keeps no connections, so that sharing it between threads is free.
pub(crate) struct Redlock {
    manager: RedLock,
}

impl Redlock {
    pub(crate) fn new(urls: Vec<String>) -> io::Result<Self> {
        // The crate panics on a URL that it cannot read. It has a `redis` of its own, older than
        // ours, but URLs have not changed.
        for url in &urls {
            redis::Client::open(url.as_str()).map_err(io::Error::other)?;
        }
        let mut manager = RedLock::new(urls);
        // One try: see the sibling. After it the crate sleeps for a random time in `0..delay`
        // milliseconds, retry or not: 1 makes that zero.
        manager.set_retry(1, 1);
        Ok(Self { manager })
    }

    pub(crate) fn pairs(&self, n: usize, ttl: Duration, name: &str) -> Tally {
        let mut tally = Tally::default();
        for _ in 0..n {
            self.pair(ttl, name, &mut tally);
        }
        tally
    }

    pub(crate) fn threads(
        &self,
        n: usize,
        window: Duration,
        ttl: Duration,
        name: &str,
    ) -> io::Result<Tally> {
        let start = Instant::now();
        let run = |name: String| {
            let mut tally = Tally::default();
            while start.elapsed() < window {
                self.pair(ttl, &name, &mut tally);
            }
            tally
        };
        thread::scope(|scope| {
            let threads = (0..n)
                .map(|i| {
                    let name = format!("{name}:{i}");
                    thread::Builder::new().spawn_scoped(scope, || run(name))
                })
                .collect::<io::Result<Vec<_>>>()?;
            let mut all = Tally::default();
            for thread in threads {
                all.merge(thread.join().unwrap_or_default());
            }
            Ok(all)
        })
    }

    fn pair(&self, ttl: Duration, name: &str, tally: &mut Tally) {
        let millis = usize::try_from(ttl.as_millis()).unwrap_or(usize::MAX);
        let start = Instant::now();
        let acquired = match self.manager.lock(name.as_bytes(), millis) {
            Ok(Some(lock)) => {
                self.manager.unlock(&lock);
                true
            }
            Ok(None) | Err(_) => false,
        };
        tally.enter(start, acquired);
    }
}
