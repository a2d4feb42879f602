//! Numbers out of samples, and the meters of this process.

use std::fmt;
use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds, one per pair.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<u64>);

impl Samples {
    pub(crate) fn push(&mut self, took: Duration) {
        self.push_ns(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn push_ns(&mut self, ns: u64) {
        self.0.push(ns);
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them, in the order in which they were taken.
    pub(crate) fn all_ns(&self) -> &[u64] {
        &self.0
    }

    /// Microseconds below which half of the samples lie.
    pub(crate) fn median_us(&self) -> f64 {
        self.percentile_us(0.5)
    }

    /// Microseconds below which nine of ten samples lie.
    pub(crate) fn p90_us(&self) -> f64 {
        self.percentile_us(0.9)
    }

    /// Microseconds below which 99 of 100 samples lie.
    pub(crate) fn p99_us(&self) -> f64 {
        self.percentile_us(0.99)
    }

    /// Microseconds of the longest.
    pub(crate) fn max_us(&self) -> f64 {
        self.percentile_us(1.0)
    }

    /// Not a number if there are no samples.
    fn percentile_us(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        let at = (last as f64 * share).ceil() as usize;
        sorted.get(at).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
    }
}

/// The middle of `values`, which may be in any order; not a number if there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What a client did in one batch of pairs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// The pairs that were acquired.
    pub(crate) samples: Samples,
    /// Pairs that were not acquired.
    pub(crate) failed: usize,
    /// Processor time of the client's process.
    pub(crate) cpu: Duration,
}

impl Batch {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.samples.extend(&other.samples);
        self.failed += other.failed;
        self.cpu += other.cpu;
    }

    /// Microseconds of processor time per pair, acquired or not.
    pub(crate) fn cpu_us_per_pair(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / (self.samples.len() + self.failed) as f64
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            samples,
            failed,
            cpu,
        } = self;
        let list: Vec<String> = samples.all_ns().iter().map(u64::to_string).collect();
        let (ok, cpu, list) = (samples.len(), cpu.as_micros(), list.join(","));
        write!(
            f,
            "pairs ok={ok} failed={failed} cpu_us={cpu} samples_ns={list}"
        )
    }
}

/// What a client did in one window of a closed loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) ok: usize,
    pub(crate) failed: usize,
    pub(crate) elapsed: Duration,
    pub(crate) cpu: Duration,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Window {
    pub(crate) fn new(samples: &Samples, failed: usize, elapsed: Duration, cpu: Duration) -> Self {
        let (p50_us, p99_us) = (samples.median_us(), samples.p99_us());
        Self {
            ok: samples.len(),
            failed,
            elapsed,
            cpu,
            p50_us,
            p99_us,
        }
    }

    pub(crate) fn pairs_per_s(&self) -> f64 {
        self.ok as f64 / self.elapsed.as_secs_f64()
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ok,
            failed,
            elapsed,
            cpu,
            p50_us,
            p99_us,
        } = self;
        let (elapsed, cpu) = (elapsed.as_micros(), cpu.as_micros());
        write!(
            f,
            "threads ok={ok} failed={failed} elapsed_us={elapsed} cpu_us={cpu}"
        )?;
        write!(f, " p50_ns={:.0} p99_ns={:.0}", p50_us * 1e3, p99_us * 1e3)
    }
}

/// Nanoseconds of a clock that all processes of the machine share, so that one can say what another one took.
pub(crate) fn shared_clock() -> u64 {
    let time = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps until the shared clock shows `ns`.
pub(crate) fn sleep_until(ns: u64) {
    thread::sleep(Duration::from_nanos(ns.saturating_sub(shared_clock())));
}

/// User and system time of this process, all threads together.
pub(crate) fn process_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// User and system time of another process, threads that have ended left out.
///
/// # Errors
///
/// Where there is no `/proc`, or the process has ended.
pub(crate) fn cpu_of(process: u32) -> io::Result<Duration> {
    let mut sum = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // Nanoseconds on a processor, those spent waiting for one, and how often.
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let ns = text
            .split_whitespace()
            .next()
            .and_then(|it| it.parse().ok());
        sum += Duration::from_nanos(ns.ok_or_else(|| io::Error::other("an empty schedstat"))?);
    }
    Ok(sum)
}

/// Memory of this process that is in RAM, in KiB.
///
/// # Errors
///
/// Where there is no `/proc`.
pub(crate) fn resident_kib() -> io::Result<u64> {
    // Not `statm`: that counts in pages, whose size would have to be asked for.
    let status = fs::read_to_string("/proc/self/status")?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
        .ok_or_else(|| io::Error::other("no VmRSS in /proc/self/status"))
}

/// Rows under a heading, columns as wide as they need to be.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Self {
        Self {
            rows: vec![heading.iter().map(|it| (*it).to_owned()).collect()],
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints the table: the first column to the left, numbers to the right.
    pub(crate) fn print(&self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                line += &match column {
                    0 => format!("  {cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
            }
            println!("{}", line.trim_end());
        }
    }
}

/// `value` with `digits` after the point, or a dash where there is no number.
pub(crate) fn num(value: f64, digits: usize) -> String {
    if value.is_finite() {
        format!("{value:.digits$}")
    } else {
        "-".to_owned()
    }
}
