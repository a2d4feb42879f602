//! Threads that do pairs for a while, each its own.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::Ours;
use crate::support::Result;
use crate::support::stats::{Samples, Window, process_cpu};

impl Ours {
    /// Runs pairs on each of `n` threads for `window`, a name each.
    pub(crate) fn threads(&self, n: usize, window: Duration, name: &str) -> io::Result<Window> {
        let names: Vec<String> = (0..n).map(|i| format!("{name}:{i}")).collect();
        self.threads_that(n, window, |i| self.pair(&names[i]))
    }

    /// Runs `pair` on each of `n` threads for `window`, with the number of the thread.
    pub(crate) fn threads_that(
        &self,
        n: usize,
        window: Duration,
        pair: impl Fn(usize) -> Result + Sync,
    ) -> io::Result<Window> {
        let (start, cpu) = (Instant::now(), process_cpu());
        let run = |i| {
            let (mut samples, mut failed) = (Samples::default(), 0);
            while start.elapsed() < window {
                let begun = Instant::now();
                match pair(i) {
                    Ok(()) => samples.push(begun.elapsed()),
                    Err(_) => failed += 1,
                }
            }
            (samples, failed)
        };
        let (mut samples, mut failed) = (Samples::default(), 0);
        thread::scope(|scope| {
            let threads = (0..n)
                .map(|i| thread::Builder::new().spawn_scoped(scope, move || run(i)))
                .collect::<io::Result<Vec<_>>>()?;
            for thread in threads {
                let (its_samples, its_failed) = thread
                    .join()
                    .map_err(|_| io::Error::other("a thread panicked"))?;
                samples.extend(&its_samples);
                failed += its_failed;
            }
            io::Result::Ok(())
        })?;
        let (elapsed, cpu) = (start.elapsed(), process_cpu().saturating_sub(cpu));
        Ok(Window::new(&samples, failed, elapsed, cpu))
    }
}
