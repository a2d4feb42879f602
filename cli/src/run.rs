//! `quorlock run` and `quorlock check`.

mod group;
mod guardian;
mod job;
mod signals;
mod terminal;
mod times;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, io};

use quorlock::{CancelHandle, LockManager, ReleaseError};

use crate::exit::{Exit, Failed};
use crate::holding::{Check, Run};
use crate::options::NodeArgs;
use crate::run::job::Job;
use crate::run::signals::{Event, Events};
use crate::run::times::Times;
use crate::stderr::say;
use crate::taking::Held;
use crate::{clock, lease, nested, nodes, show, waiting};

pub(crate) fn run(args: &NodeArgs, run: &Run) -> Result<ExitCode, Failed> {
    let of_locks = nested::locks(args, &run.taking)?;
    let settings = nodes::with_locks(args)?;
    let times =
        Times::new(settings.ttl, run.kill_after).map_err(|err| Failed::new(Exit::USAGE, err))?;
    // Before the wait: a command that cannot be started needs no lock.
    lease::new_path()?;
    let cancel = CancelHandle::new();
    let events = signals::listen(&cancel)?;
    let ttl = settings.ttl;
    let locks = settings.build()?;
    let held = match take(run, &locks, &cancel, &events) {
        Err(failed) => return run.taking.end(failed, false),
        Ok(held) => held,
    };
    // A lock that was handed over lasts for a second until its first extension, and TERM would be due. If this fails, the command is
    // ended at the first look.
    let now = clock::now();
    if times.term_at(times.kill_at(now, held.hold.remaining())) <= now {
        let _ = held.hold.extend(ttl);
    }
    let told = events.sender.clone();
    held.hold.on_lost(move |_| {
        let _ = told.send(Event::Lost);
    });
    let ended = Job::start(run, &held, of_locks, &events, times)
        .map_err(|err| Failed::new(Exit::INTERNAL, format!("cannot start the command: {err}")))
        .and_then(Job::finish);
    release(run, held, ended).map(ExitCode::from)
}

fn take(
    run: &Run,
    locks: &LockManager,
    cancel: &CancelHandle,
    events: &Events,
) -> Result<Held, Failed> {
    let held = waiting::take(&run.taking, locks, cancel);
    // RACE: a signal that comes together with the lock ends us. After this line signals go to the command.
    if cancel.is_cancelled()
        && let Some(number) = events.signal()
    {
        return Err(Failed::new(Exit::signal(number), "a signal ended the wait"));
    }
    held
}

/// Releases the lock. A lock that is gone by now was lost.
fn release(run: &Run, held: Held, ended: Result<u8, Failed>) -> Result<u8, Failed> {
    match held.hold.release() {
        Err(ReleaseError::Lost(lost)) => ended.and_then(|status| {
            let reason = format!("{lost} before the command ended with status {status}");
            Err(Failed::new(Exit::LOST, reason))
        }),
        Err(err) if run.taking.verbose => {
            say(&err.to_string());
            ended
        }
        Ok(_) | Err(_) => ended,
    }
}

/// The work of a helper process, if this is one.
pub(crate) fn help() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    let task = arguments.next()?;
    if task == guardian::TASK {
        Some(guardian::guard(arguments))
    } else if task == job::TASK {
        Some(become_command(arguments))
    } else {
        None
    }
}

/// Waits for the gate and becomes the command.
fn become_command(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(program), Some(path)) = (arguments.next(), lease::surrounding()) else {
        return Exit::USAGE.code();
    };
    match lease::wait_for_gate(&path) {
        Ok(Some(kill_at)) if clock::now() < kill_at => {}
        // quorlock was killed, or the lock has expired.
        Ok(_) => return Exit::LOST.code(),
        Err(err) => {
            say(&format!("{}: {err}", path.display()));
            return Exit::INTERNAL.code();
        }
    }
    let err = Command::new(&program).args(arguments).exec();
    say(&format!("{}: {err}", program.display()));
    match err.kind() {
        io::ErrorKind::NotFound => Exit::NOT_FOUND.code(),
        _ => Exit::NOT_EXECUTABLE.code(),
    }
}

/// `quorlock check`: whether the command may continue.
pub(crate) fn check(check: &Check) -> Result<ExitCode, Failed> {
    let Some(path) = lease::surrounding() else {
        let reason = format!(
            "{} is not set: use this in commands of quorlock run",
            lease::VARIABLE
        );
        return Err(Failed::new(Exit::USAGE, reason));
    };
    let kill_at = match lease::read(&path) {
        Ok(kill_at) => kill_at,
        // quorlock or its guardian has removed it.
        Err(err)
            if err.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(Path::is_dir) =>
        {
            None
        }
        Err(err) => {
            let reason = format!("cannot read {}: {err}", path.display());
            return Err(Failed::new(Exit::INTERNAL, reason));
        }
    };
    let left = kill_at.map_or(Duration::ZERO, |it| it.saturating_sub(clock::now()));
    if left.is_zero() || left < check.at_least {
        let reason = match kill_at {
            Some(_) if !left.is_zero() => format!(
                "the lock is held for {} only, unless extended",
                show::time(left)
            ),
            _ => "the lock is no longer held".to_owned(),
        };
        return Err(Failed::new(Exit::LOST, reason));
    }
    Ok(ExitCode::SUCCESS)
}
