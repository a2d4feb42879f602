//! `quorlock run`, `quorlock once` and `quorlock check`.

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
use std::time::Duration;
use std::{env, fs, io};

use nix::unistd::execvp;
use quorlock::{CancelHandle, Hold, LockManager, Once, OnceError, ReleaseError};

use crate::exit::{Exit, Failed};
use crate::holding::{Check, Planned, Run};
use crate::options::NodeArgs;
use crate::run::group::ourselves;
use crate::run::job::Job;
use crate::run::signals::{Event, Events};
use crate::run::times::Times;
use crate::stderr::say;
use crate::taking::Held;
use crate::{clock, lease, nested, nodes, report, show, waiting};

pub(crate) fn run(args: &NodeArgs, run: &Run) -> Result<ExitCode, Failed> {
    let ready = Ready::new(args, run)?;
    let held = waiting::take(&run.taking, &ready.locks, &ready.cancel);
    let held = match ready.signalled().map_or(held, Err) {
        Err(failed) => return run.taking.end(failed, false),
        Ok(held) => held,
    };
    let ended = ready.command(run, &held.hold, held.token, None);
    release(run, held, ended).map(ExitCode::from)
}

/// `quorlock once`.
pub(crate) fn once(args: &NodeArgs, once: &Planned) -> Result<ExitCode, Failed> {
    let run = &once.run;
    let taking = &run.taking;
    taking.check()?;
    let ([name], None, false) = (&taking.names[..], taking.permits, taking.shared) else {
        return Err(Failed::new(
            Exit::USAGE,
            "give one name, no --shared and no --permits",
        ));
    };
    let ready = Ready::new(args, run)?;
    let job = once.job(&ready.locks, name).cancelled_by(&ready.cancel);
    let ended = job.run(|held| {
        if let Some(failed) = ready.signalled() {
            return Err(failed);
        }
        match ready.command(run, held, held.token().get(), Some(held.period()))? {
            0 => Ok(()),
            status => Err(Failed::new(Exit(status), "")),
        }
    });
    let failed = match ended {
        Ok(Once::Running(by)) => Failed::new(Exit::HELD, format!("{} runs it", report::by(&by))),
        Ok(done) => {
            if let (Once::Done(record), true) = (done, taking.verbose) {
                say(&report::run(name, Some(&record)));
            }
            return Ok(ExitCode::SUCCESS);
        }
        // The command has said why.
        Err(OnceError::Failed(failed)) if failed.reason.is_empty() => {
            return Ok(failed.exit.code());
        }
        Err(OnceError::Failed(failed)) => failed,
        Err(OnceError::NotAcquired(err)) => ready.signalled().unwrap_or_else(|| err.into()),
        Err(err) => {
            let exit = match err {
                OnceError::Unsure { .. } => Exit::NO_QUORUM,
                OnceError::Abandoned(_) => Exit::ABANDONED,
                OnceError::NotRecorded { .. } => Exit::NOT_RECORDED,
                _ => Exit::CONFIG,
            };
            Failed::new(exit, err)
        }
    };
    taking.end(failed, false)
}

/// All that is there before the wait: a command that cannot be started needs no lock.
struct Ready {
    of_locks: String,
    ttl: Duration,
    times: Times,
    cancel: CancelHandle,
    events: Events,
    locks: LockManager,
}

impl Ready {
    fn new(args: &NodeArgs, run: &Run) -> Result<Ready, Failed> {
        let of_locks = nested::locks(args, &run.taking)?;
        let settings = nodes::with_locks(args)?;
        let ttl = settings.ttl;
        let times = Times::new(ttl, run.kill_after).map_err(|err| Failed::new(Exit::USAGE, err))?;
        let cancel = CancelHandle::new();
        let events = signals::listen(&cancel)?;
        lease::new_path(&of_locks)?;
        Ok(Ready {
            of_locks,
            ttl,
            times,
            cancel,
            events,
            locks: settings.build()?,
        })
    }

    /// RACE: a signal that comes together with the lock ends us. After this call signals go to the
    /// command.
    fn signalled(&self) -> Option<Failed> {
        let number = self.cancel.is_cancelled().then(|| self.events.signal())??;
        Some(Failed::new(Exit::signal(number), "a signal ended the wait"))
    }

    /// Runs the command under the lock. Its status.
    fn command(
        &self,
        run: &Run,
        hold: &Hold,
        token: u64,
        period: Option<u64>,
    ) -> Result<u8, Failed> {
        let times = self.times;
        // A lock that was handed over lasts for a second until its first extension, and TERM would
        // be due. If this fails, the command is ended at the first look.
        let now = clock::now();
        if times.term_at(times.kill_at(now, hold.remaining())) <= now {
            let _ = hold.extend(self.ttl);
        }
        let told = self.events.sender.clone();
        hold.on_lost(move |_| {
            let _ = told.send(Event::Lost);
        });
        let mut of_lock = vec![
            ("QUORLOCK_NAME", run.taking.names.join(" ")),
            ("QUORLOCK_FENCING_TOKEN", token.to_string()),
        ];
        of_lock.extend(period.map(|it| ("QUORLOCK_PERIOD", it.to_string())));
        Job::start(
            run,
            hold,
            &of_lock,
            self.of_locks.clone(),
            &self.events,
            times,
        )
        .map_err(|err| Failed::new(Exit::INTERNAL, format!("cannot start the command: {err}")))
        .and_then(Job::finish)
    }
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
