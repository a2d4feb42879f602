//! What a batch reports, and the clocks behind it.

use std::fmt;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Pairs run by one thread or task: how long each acquired one took, and how many were not acquired.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Nanoseconds per acquired and released pair, in the order they were run.
    pub(crate) samples: Vec<u128>,
    /// Pairs whose acquisition was refused or failed.
    pub(crate) failed: usize,
}

impl Tally {
    /// Enters a pair that began at `start` and has just ended.
    pub(crate) fn enter(&mut self, start: Instant, acquired: bool) {
        if acquired {
            self.samples.push(start.elapsed().as_nanos());
        } else {
            self.failed = self.failed.saturating_add(1);
        }
    }

    /// Adds what another thread did.
    pub(crate) fn merge(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.failed = self.failed.saturating_add(other.failed);
    }
}

/// A stretch of wall time and of processor time, all threads of this process together.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self {
            wall: Instant::now(),
            cpu: process_cpu(),
        }
    }

    /// Wall and processor time since the start.
    pub(crate) fn read(&self) -> (Duration, Duration) {
        (self.wall.elapsed(), process_cpu().saturating_sub(self.cpu))
    }
}

/// Nanoseconds of a clock that all processes of the machine share: the bench compares ours with other processes'.
pub(crate) fn shared_clock() -> u64 {
    let time = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// User and system time of this process, threads that have ended included.
fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The answer to `pairs`.
#[derive(Debug)]
pub(crate) struct PairsReport {
    pub(crate) tally: Tally,
    pub(crate) cpu: Duration,
}

impl fmt::Display for PairsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { samples, failed } = &self.tally;
        write!(
            f,
            "pairs ok={} failed={failed} cpu_us={}",
            samples.len(),
            self.cpu.as_micros()
        )?;
        for (i, sample) in samples.iter().enumerate() {
            write!(f, "{}{sample}", if i == 0 { " samples_ns=" } else { "," })?;
        }
        // The key is there even when the list is empty.
        if samples.is_empty() {
            f.write_str(" samples_ns=")
        } else {
            Ok(())
        }
    }
}

/// The answer to `threads`.
#[derive(Debug)]
pub(crate) struct ThreadsReport {
    pub(crate) tally: Tally,
    pub(crate) elapsed: Duration,
    pub(crate) cpu: Duration,
}

impl fmt::Display for ThreadsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut samples = self.tally.samples.clone();
        samples.sort_unstable();
        write!(
            f,
            "threads ok={} failed={} elapsed_us={} cpu_us={} p50_ns={} p99_ns={}",
            samples.len(),
            self.tally.failed,
            self.elapsed.as_micros(),
            self.cpu.as_micros(),
            percentile(&samples, 50),
            percentile(&samples, 99),
        )
    }
}

/// The answer to `lock`.
#[derive(Debug)]
pub(crate) struct LockReport {
    pub(crate) called: u64,
    pub(crate) at: u64,
}

impl fmt::Display for LockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "locked called_ns={} at_ns={}", self.called, self.at)
    }
}

/// One critical section: when the lock was asked for, when it was there, and when it was released.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) called: u64,
    pub(crate) entered: u64,
    pub(crate) left: u64,
}

/// Critical sections of one task, or of several: a list for each.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    pub(crate) tasks: Vec<Vec<Section>>,
    pub(crate) errors: usize,
    /// What the first of them said.
    pub(crate) first_error: String,
}

impl Sections {
    /// Enters an attempt that failed.
    pub(crate) fn note(&mut self, err: &dyn fmt::Display) {
        if self.errors == 0 {
            self.first_error = err.to_string().replace(char::is_whitespace, "_");
        }
        self.errors = self.errors.saturating_add(1);
    }

    /// Adds what another task did.
    pub(crate) fn merge(&mut self, other: Self) {
        if self.errors == 0 {
            self.first_error = other.first_error;
        }
        self.tasks.extend(other.tasks);
        self.errors = self.errors.saturating_add(other.errors);
    }
}

/// The answer to `sections`.
#[derive(Debug)]
pub(crate) struct SectionsReport {
    pub(crate) sections: Sections,
    pub(crate) cpu: Duration,
}

impl fmt::Display for SectionsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sections {
            tasks,
            errors,
            first_error,
        } = &self.sections;
        write!(
            f,
            "sections errors={errors} first_error={first_error} cpu_us={} sections_ns=",
            self.cpu.as_micros()
        )?;
        for task in tasks {
            for Section {
                called,
                entered,
                left,
            } in task
            {
                write!(f, "{called}:{entered}:{left},")?;
            }
            f.write_str(";")?;
        }
        Ok(())
    }
}

/// The sample below which `percent` of `sorted` lie; 0 if there are none.
fn percentile(sorted: &[u128], percent: usize) -> u128 {
    let last = sorted.len().saturating_sub(1);
    let at = last.saturating_mul(percent).div_ceil(100);
    sorted.get(at).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_one_line_each() {
        let tally = || Tally {
            samples: vec![30, 10, 20],
            failed: 1,
        };
        let cpu = Duration::from_micros(7);
        let pairs = PairsReport {
            tally: tally(),
            cpu,
        };
        assert_eq!(
            pairs.to_string(),
            "pairs ok=3 failed=1 cpu_us=7 samples_ns=30,10,20"
        );
        let none = PairsReport {
            tally: Tally::default(),
            cpu,
        };
        assert_eq!(none.to_string(), "pairs ok=0 failed=0 cpu_us=7 samples_ns=");
        let threads = ThreadsReport {
            tally: tally(),
            elapsed: Duration::from_millis(2),
            cpu,
        };
        assert_eq!(
            threads.to_string(),
            "threads ok=3 failed=1 elapsed_us=2000 cpu_us=7 p50_ns=20 p99_ns=30",
        );
        let task = || {
            vec![
                Section {
                    called: 1,
                    entered: 2,
                    left: 3,
                },
                Section {
                    called: 4,
                    entered: 5,
                    left: 6,
                },
            ]
        };
        let mut sections = Sections {
            tasks: vec![task(), Vec::new()],
            ..Sections::default()
        };
        sections.note(&"no lock");
        let sections = SectionsReport { sections, cpu };
        assert_eq!(
            sections.to_string(),
            "sections errors=1 first_error=no_lock cpu_us=7 sections_ns=1:2:3,4:5:6,;;",
        );
    }
}
