//! What does it cost a program to lock once?
//!
//! A process each: it starts, connects, locks, releases and ends. Measured is the time from before it is started until
//! it has ended, beside one that does the same with five plain sockets, and one that does nothing. The order rotates.

use std::env;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::Result;
use crate::support::line::field;
use crate::support::once::{BARE, NOTHING, OURS};
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Table, median, num};

const PROGRAMS: [(&str, &str); 3] = [
    ("quorlock", OURS),
    ("a bare connection", BARE),
    ("nothing", NOTHING),
];
/// Their numbers.
const LOCKS: usize = 0;
const CONNECTS: usize = 1;
const STEPS: [&str; 4] = ["build_us", "lock_us", "release_us", "end_us"];

/// A process that has waited for something takes longer to lock.
const QUICK_US: f64 = 50_000.0;
/// Milliseconds that ours may take more than the bare one.
const EXCESS_MAX: f64 = 0.8;

/// What all processes of one kind took in a run: medians.
struct Run {
    wall_ms: f64,
    cpu_ms: f64,
    /// What ours say about their steps.
    steps: Vec<f64>,
}

pub(crate) fn run(setting: &Setting) -> Result {
    let processes = setting.size(100, 10);
    setting.begin(&format!(
        "once: a program that locks once, {} runs of {processes} processes each",
        setting.runs()
    ));
    let nodes = Nodes::start()?;
    let urls = nodes.urls();
    // With all defaults, so new servers have no vote at first. One process has waited for that when it has its lock; those
    // that start right behind it know how long the servers have been up by the second only, and may wait a little more.
    while QUICK_US < field::<f64>(&start(OURS, &urls)?.1, "lock_us")? {}
    let mut runs = Runs::new(PROGRAMS.map(|it| it.0));
    for _ in 0..setting.runs() {
        let mut seen: Vec<Vec<(f64, String)>> = PROGRAMS.map(|_| Vec::new()).into();
        for turn in 0..processes {
            for i in (0..PROGRAMS.len()).map(|i| (i + turn) % PROGRAMS.len()) {
                seen[i].push(start(PROGRAMS[i].1, &urls)?);
            }
        }
        for (who, seen) in seen.iter().enumerate() {
            runs.push(who, Run::of(seen)?);
        }
    }
    print(&runs);
    let above = runs.excess(LOCKS, CONNECTS, |it| it.wall_ms);
    setting.judge(
        Target::AtMost(EXCESS_MAX),
        "wall above a bare connection's, ms",
        above,
        2,
    );
    Ok(())
}

/// Runs a process to its end: milliseconds, and what it said.
fn start(flag: &str, urls: &[String]) -> Result<(f64, String)> {
    let mut command = Command::new(env::current_exe()?);
    command
        .arg(flag)
        .args(urls)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let start = Instant::now();
    let out = command.output()?;
    let wall = start.elapsed().as_secs_f64() * 1e3;
    if out.status.success() {
        Ok((wall, String::from_utf8_lossy(&out.stdout).into_owned()))
    } else {
        Err(format!("a process with {flag} failed").into())
    }
}

impl Run {
    fn of(seen: &[(f64, String)]) -> Result<Self> {
        let number = |key: &str| -> Result<f64> {
            let numbers = seen
                .iter()
                .map(|it| field::<f64>(&it.1, key))
                .collect::<std::io::Result<Vec<_>>>()?;
            Ok(median(&numbers))
        };
        let wall_ms = median(&seen.iter().map(|it| it.0).collect::<Vec<_>>());
        let has_steps = seen.iter().all(|it| field::<f64>(&it.1, STEPS[0]).is_ok());
        let steps = if has_steps {
            STEPS.iter().map(|it| number(it)).collect::<Result<_>>()?
        } else {
            Vec::new()
        };
        Ok(Self {
            wall_ms,
            cpu_ms: number("cpu_us")? / 1e3,
            steps,
        })
    }
}

fn print(runs: &Runs<Run>) {
    let mut table = Table::new(&[
        "",
        "x bare",
        "above ms",
        "wall ms",
        "cpu ms",
        "build us",
        "lock us",
        "release us",
        "end us",
    ]);
    for (who, name) in runs.names() {
        let wall = |it: &Run| it.wall_ms;
        let mut cells = vec![name.to_owned()];
        cells.push(num(runs.ratio(who, CONNECTS, wall), 2));
        cells.push(num(runs.excess(who, CONNECTS, wall), 2));
        cells.push(num(runs.median(who, wall), 2));
        cells.push(num(runs.median(who, |it| it.cpu_ms), 2));
        for step in 0..STEPS.len() {
            cells.push(num(
                runs.median(who, |it| it.steps.get(step).copied().unwrap_or(f64::NAN)),
                0,
            ));
        }
        table.row(cells);
    }
    table.print();
}
