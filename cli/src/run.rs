//! `quorlock run` and `quorlock check`.

mod group;
mod guardian;
mod job;
mod signals;
mod terminal;
mod times;

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, ExitCode, id};
use std::{env, fs, io};

use nix::unistd::execvp;
use quorlock::{CancelHandle, LockManager, ReleaseError};

use crate::exit::{Exit, Failed};
use crate::holding::{Check, Run};
use crate::options::NodeArgs;
use crate::run::group::ourselves;
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
    let cancel = CancelHandle::new();
    let events = signals::listen(&cancel)?;
    // Before the wait: a command that cannot be started needs no lock.
    lease::new_path(&of_locks)?;
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
            let reason = format!(
                "{} before the command ended with status {status}",
                lost.reason
            );
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
    } else if task == job::TASK || task == job::TASK_WITHOUT_PIPE {
        Some(become_command(&task, &arguments.collect::<Vec<_>>()))
    } else {
        None
    }
}

/// Waits for the gate and becomes the command.
fn become_command(task: &OsStr, line: &[OsString]) -> ExitCode {
    let ([program, arguments @ ..], Some(path)) = (line, lease::surrounding()) else {
        return Exit::USAGE.code();
    };
    match lease::wait_for_gate(&path) {
        Ok(Some(kill_at)) if clock::now() < kill_at => {}
        // quorlock was killed or has failed, or the lock has expired.
        _ => return Exit::LOST.code(),
    }
    // Service managers give these to one process by its id.
    let ids = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"].map(|it| (it, id().to_string()));
    let is_ours = |it: &(&str, String)| env::var(it.0) == Ok(parent_id().to_string());
    let mut ids = ids.into_iter().filter(is_ours).peekable();
    let err = if task == job::TASK {
        Command::new(program).args(arguments).envs(ids).exec()
    } else if ids.peek().is_some() {
        // Again, with these variables.
        ourselves(job::TASK_WITHOUT_PIPE)
            .map_or_else(|err| err, |mut it| it.args(line).envs(ids).exec())
    } else {
        // A `Command` would set SIGPIPE to its default.
        let text = |it: &OsString| CString::new(it.as_bytes()).unwrap_or_default();
        let Err(err) = execvp(&text(program), &line.iter().map(text).collect::<Vec<_>>());
        err.into()
    };
    let (exit, blamed) = match err.kind() {
        io::ErrorKind::NotFound => (Exit::NOT_FOUND, blamed(program)),
        _ => (Exit::NOT_EXECUTABLE, None),
    };
    let blamed = blamed.unwrap_or_default();
    say(&format!("{}: {err}{blamed}", program.display()));
    exit.code()
}

/// The first line of a script that is there: it names an interpreter that is not.
fn blamed(program: &OsStr) -> Option<String> {
    let path = env::var_os("PATH").filter(|_| !program.as_bytes().contains(&b'/'));
    let path = path.unwrap_or_else(|| ".".into());
    let mut files = env::split_paths(&path).map(|it| it.join(program));
    let text = files.find_map(|it| fs::read_to_string(it).ok())?;
    let line = text.split('\n').next()?;
    let line = line.replace('\r', " (with Windows line ends)");
    Some(format!(": {line:?}"))
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
    let kill_at = lease::read(&path).map_err(|err| {
        let reason = format!("cannot read {}: {err}", path.display());
        Failed::new(Exit::INTERNAL, reason)
    })?;
    let left = kill_at.saturating_sub(clock::now());
    if left.is_zero() || left < check.at_least {
        let reason = if left.is_zero() {
            "the lock is no longer held".to_owned()
        } else {
            let left = show::time(left);
            format!("the lock is held for {left} only, unless extended")
        };
        return Err(Failed::new(Exit::LOST, reason));
    }
    Ok(ExitCode::SUCCESS)
}
