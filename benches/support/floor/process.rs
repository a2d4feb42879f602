//! A process of the floor: this program, run once more with [`FLAG`] and URLs. It knows `pairs`, `lock`,
//! `unlock` and `sections`, as [the worker](crate::support::worker) does; its sections are those of a
//! [perfect queue](Floor::queue).

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use super::Floor;
use super::notify::Notified;
use crate::support::Result;
use crate::support::line::{addrs, answer_lines, number};
use crate::support::sections::Job;
use crate::support::stats::{Batch, process_cpu, shared_clock};

/// The first argument of such a process.
pub(crate) const FLAG: &str = "--floor";

/// Answers lines until the input ends.
pub(crate) fn run(urls: &[String]) -> ExitCode {
    match serve(urls) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("a floor of the bench: {err}");
            ExitCode::FAILURE
        }
    }
}

fn serve(urls: &[String]) -> Result {
    let addrs = addrs(urls)?;
    let mut floor = Floor::plain(&addrs)?;
    let mut notified = Notified::connect(&addrs)?;
    let mut locked = String::new();
    Ok(answer_lines(|line| {
        answer(line, &mut floor, &mut notified, &mut locked)
    })?)
}

fn answer(
    line: &str,
    floor: &mut Floor,
    notified: &mut Notified,
    locked: &mut String,
) -> Result<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["pairs", n, _, name] => {
            let cpu = process_cpu();
            let samples = floor.pairs(number(n)?, name)?;
            floor.settle()?;
            Ok(Batch {
                samples,
                failed: 0,
                cpu: process_cpu().saturating_sub(cpu),
            }
            .to_string())
        }
        ["lock", _, name, ..] => {
            let called = shared_clock();
            notified.lock(name)?;
            let at = shared_clock();
            (*name).clone_into(locked);
            Ok(format!("locked called_ns={called} at_ns={at}"))
        }
        ["unlock", after] => {
            thread::sleep(Duration::from_micros(number(after)?));
            let called = shared_clock();
            notified.unlock(locked)?;
            Ok(format!("unlocked called_ns={called}"))
        }
        ["sections", workers, begin, end, inside, _, name, ..] => {
            let job = Job {
                begin: number(begin)?,
                end: number(end)?,
                inside: Duration::from_micros(number(inside)?),
                name: (*name).to_owned(),
            };
            Ok(floor.queue(number(workers)?, &job)?.to_string())
        }
        _ => Err(format!("{line:?} is not understood").into()),
    }
}
