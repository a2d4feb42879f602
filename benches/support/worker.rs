//! A process of ours: this program, run once more with [`FLAG`] and URLs. One manager, and no will of its own.
//!
//! ```text
//! -> pairs <n> <ttl_ms> <name>
//! <- pairs ok=<k> failed=<k> cpu_us=<us> samples_ns=<ns>,<ns>,...
//! -> threads <t> <seconds> <ttl_ms> <name>
//! <- threads ok=<k> failed=<k> elapsed_us=<us> cpu_us=<us> p50_ns=<ns> p99_ns=<ns>
//! -> lock <ttl_ms> <name>
//! <- locked called_ns=<t> at_ns=<t>
//! -> unlock <after_us>
//! <- unlocked called_ns=<t>
//! -> sections <threads> <begin_ns> <end_ns> <inside_us> <ttl_ms> <name>
//! <- sections errors=<k> first_error=<text> cpu_us=<us> commands=<k> rounds=<k> won=<k>
//!    sections_ns=<called>:<entered>:<left>,...;...                            (in one line; a `;` ends a thread)
//! -> hold <n> <name>                 -> release                 -> commands
//! <- held                            <- released valid=<k>      <- commands commands=<k>
//! ```
//!
//! The first five are the peers' too. The ttl is for them: ours is the manager's, and the same. Times are of the
//! clock that all processes share.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use super::Result;
use super::line::{answer_lines, number};
use super::ours::{Guard, Ours};
use super::sections::Job;
use super::stats::shared_clock;

/// The first argument of such a process.
pub(crate) const FLAG: &str = "--worker";

/// Answers lines until the input ends, as it does when the bench is killed.
pub(crate) fn run(urls: &[String]) -> ExitCode {
    match serve(urls) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("a worker of the bench: {err}");
            ExitCode::FAILURE
        }
    }
}

fn serve(urls: &[String]) -> Result {
    let mut worker = Worker {
        ours: Ours::open(urls)?,
        locked: None,
        held: Vec::new(),
    };
    Ok(answer_lines(|line| worker.answer(line))?)
}

struct Worker {
    ours: Ours,
    locked: Option<Guard>,
    held: Vec<Guard>,
}

impl Worker {
    fn answer(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["pairs", n, _, name] => Ok(self.ours.pairs(number(n)?, name).to_string()),
            ["threads", threads, seconds, _, name] => {
                let window = Duration::from_secs_f64(number(seconds)?);
                Ok(self
                    .ours
                    .threads(number(threads)?, window, name)?
                    .to_string())
            }
            ["lock", _, name] => {
                let mutex = self.ours.mutex(name);
                let called = shared_clock();
                self.locked = Some(mutex.lock()?);
                Ok(format!(
                    "locked called_ns={called} at_ns={}",
                    shared_clock()
                ))
            }
            ["unlock", after] => {
                let guard = self.locked.take().ok_or("nothing is locked")?;
                thread::sleep(Duration::from_micros(number(after)?));
                let called = shared_clock();
                guard.release()?;
                Ok(format!("unlocked called_ns={called}"))
            }
            ["sections", threads, begin, end, inside, _, name] => {
                let job = Job {
                    begin: number(begin)?,
                    end: number(end)?,
                    inside: Duration::from_micros(number(inside)?),
                    name: (*name).to_owned(),
                };
                Ok(self.ours.sections(number(threads)?, &job)?.to_string())
            }
            ["hold", n, name] => {
                self.held.extend(self.ours.hold(number(n)?, name)?);
                Ok("held".to_owned())
            }
            ["release"] => {
                let valid = Ours::valid(&self.held);
                self.held.clear();
                Ok(format!("released valid={valid}"))
            }
            ["commands"] => Ok(format!("commands commands={}", self.ours.counts().commands)),
            _ => Err(format!("{line:?} is not understood").into()),
        }
    }
}
