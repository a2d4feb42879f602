//! A process that runs a program again and again, and says what that took.
//!
//! So that its processor time, and that of all processes that it leaves behind, is known: the starter waits for all of them,
//! and has no other children.
//!
//! ```text
//! --starter <times> <program> <argument>…
//! <- wall_us=<median us> cpu_us=<us each>
//! ```

use std::env;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use rustix::io::Errno;
use rustix::process::{WaitOptions, getpid, set_child_subreaper, wait};

use super::Result;
use super::line::field;
use super::stats::median;

pub(crate) const FLAG: &str = "--starter";

/// What a program took, from its start to its end: medians, or means where nothing else is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    pub(crate) wall_ms: f64,
    pub(crate) cpu_ms: f64,
}

/// Runs `command`, and its arguments, so often; with these variables.
pub(crate) fn start(
    times: usize,
    command: &[String],
    variables: &[(&str, String)],
) -> Result<Took> {
    let mut starter = Command::new(env::current_exe()?);
    starter
        .arg(FLAG)
        .arg(times.to_string())
        .args(command)
        .envs(variables.iter().map(|(name, it)| (name, it)));
    let out = starter
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !out.status.success() {
        return Err(format!("{command:?} failed").into());
    }
    let said = String::from_utf8_lossy(&out.stdout);
    Ok(Took {
        wall_ms: field::<f64>(&said, "wall_us")? / 1e3,
        cpu_ms: field::<f64>(&said, "cpu_us")? / 1e3,
    })
}

/// The process.
pub(crate) fn run(args: &[String]) -> ExitCode {
    match measure(args) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(err) => {
            eprintln!("{args:?}: {err}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &[String]) -> Result<String> {
    let [times, program, arguments @ ..] = args else {
        return Err("what is to be run?".into());
    };
    let times: usize = times.parse()?;
    set_child_subreaper(Some(getpid()))?;
    let mut walls = Vec::new();
    for _ in 0..times {
        let start = Instant::now();
        let status = Command::new(program)
            .args(arguments)
            .stdout(Stdio::null())
            .status()?;
        walls.push(start.elapsed().as_secs_f64() * 1e6);
        if !status.success() {
            return Err(format!("it ended with {status}").into());
        }
        // Those that it has left are ours now: until there are none.
        while !matches!(wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
    }
    Ok(format!(
        "wall_us={:.0} cpu_us={:.0}",
        median(&walls),
        cpu_of_children()? * 1e6 / times as f64
    ))
}

/// Seconds of all processes that were waited for, and of those that these have waited for.
fn cpu_of_children() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |it: nix::sys::time::TimeVal| it.tv_sec() as f64 + it.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}
