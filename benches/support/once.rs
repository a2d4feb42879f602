//! A process that locks once and ends: this program, run once more with a flag and URLs.
//!
//! [`OURS`] does with this crate what a program with all its defaults does. [`BARE`] connects five plain sockets, sets
//! and deletes. [`NOTHING`] returns at once: what remains is what the system needs for a process.
//!
//! ```text
//! <- cpu_us=<us> build_us=<us> lock_us=<us> release_us=<us> end_us=<us>      (the first one alone, of those that are bare)
//! ```

use std::process::ExitCode;

use super::Result;
use super::floor::Floor;
use super::line::addrs;
use super::ours;
use super::stats::process_cpu;

pub(crate) const OURS: &str = "--once";
pub(crate) const BARE: &str = "--once-bare";
pub(crate) const NOTHING: &str = "--once-nothing";

const NAME: &str = "bench:once";

/// Does it, and says how long it took.
pub(crate) fn run(flag: &str, urls: &[String]) -> ExitCode {
    let done = match flag {
        OURS => steps_of_ours(urls),
        BARE => bare(urls),
        _ => Ok(String::new()),
    };
    match done {
        Ok(steps) => {
            println!("cpu_us={}{steps}", process_cpu().as_micros());
            ExitCode::SUCCESS
        }
        Err(err) => {
            eprintln!("a program that locks once: {err}");
            ExitCode::FAILURE
        }
    }
}

fn steps_of_ours(urls: &[String]) -> Result<String> {
    let times = ours::once(urls, NAME)?;
    let steps = ["build", "lock", "release", "end"]
        .iter()
        .zip(times.windows(2));
    Ok(steps
        .map(|(name, it)| format!(" {name}_us={}", it[1].duration_since(it[0]).as_micros()))
        .collect())
}

fn bare(urls: &[String]) -> Result<String> {
    Floor::plain(&addrs(urls)?)?.pairs(1, NAME)?;
    Ok(String::new())
}
