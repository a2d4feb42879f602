//! Taking what a command is to hold: a lock, several, a reader's, or a permit.

use std::process::ExitCode;
use std::time::Duration;

use quorlock::{CancelHandle, LockGuard, LockManager, Lost, Permit, ReadGuard, ReleaseError, Released};

use crate::exit::{Exit, Failed};
use crate::options::{duration, switch};

#[derive(Debug, clap::Args)]
pub(crate) struct Taking {
    /// The lock; several are taken together, all or none
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Waits no longer than this: 30, 1.5s, 2m [default: for as long as it takes]
    #[arg(short, long, value_name = "TIME", env = "QUORLOCK_WAIT", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Does not wait
    #[arg(short, long, env = "QUORLOCK_NO_WAIT", value_parser = switch())]
    pub(crate) no_wait: bool,
    /// Shares the lock with others that do, as a reader
    #[arg(short, long, env = "QUORLOCK_SHARED", value_parser = switch())]
    pub(crate) shared: bool,
    /// Takes one of so many permits, and no lock
    #[arg(long, value_name = "N", env = "QUORLOCK_PERMITS")]
    pub(crate) permits: Option<usize>,
    /// The status if the lock is not to be had in time, 0 to 255 [default: 75]
    #[arg(short = 'E', long, value_name = "N", env = "QUORLOCK_CONFLICT_EXIT_CODE")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// Says nothing but why it failed for a fault
    #[arg(short, long, env = "QUORLOCK_QUIET", conflicts_with = "verbose", value_parser = switch())]
    pub(crate) quiet: bool,
    /// Says how long the wait took, and more
    #[arg(short, long, env = "QUORLOCK_VERBOSE", value_parser = switch())]
    pub(crate) verbose: bool,
}

/// What is held.
pub(crate) enum Held {
    Lock(LockGuard),
    Read(ReadGuard),
    Permit(Permit),
}

impl Taking {
    /// Takes it, and waits for it for as long as was asked for, or until `cancel` is cancelled.
    pub(crate) fn take(&self, locks: &LockManager, cancel: &CancelHandle) -> Result<Held, Failed> {
        self.check()?;
        let (name, patience) = (self.names.first().map_or("", String::as_str), self.patience());
        if let Some(permits) = self.permits {
            return Ok(Held::Permit(locks.semaphore(name, permits).cancelled_by(cancel).try_acquire_for(patience)?));
        }
        if self.shared {
            return Ok(Held::Read(locks.rw_lock(name).cancelled_by(cancel).try_read_for(patience)?));
        }
        let taken = match &self.names[..] {
            [name] => locks.mutex(name).cancelled_by(cancel).try_lock_for(patience)?,
            names => locks.multi_lock(names).cancelled_by(cancel).try_lock_for(patience)?,
        };
        Ok(Held::Lock(taken))
    }

    /// How it ends if nothing was taken: that the lock is not to be had is no fault.
    pub(crate) fn end(&self, failed: Failed, json: bool) -> Result<ExitCode, Failed> {
        match failed.exit {
            Exit::HELD => {
                if !self.quiet {
                    failed.tell(json);
                }
                Ok(ExitCode::from(self.conflict_exit_code.unwrap_or(Exit::HELD.number())))
            }
            exit if exit.is_signal() && self.quiet => Ok(failed.exit.code()),
            _ => Err(failed),
        }
    }

    /// A time too long for the clock is no limit.
    fn patience(&self) -> Duration {
        if self.no_wait { Duration::ZERO } else { self.wait.unwrap_or(Duration::MAX) }
    }

    fn check(&self) -> Result<(), Failed> {
        let usage = |reason: &str| Err(Failed::new(Exit::USAGE, reason));
        match (&self.names[..], self.shared, self.permits) {
            (_, true, Some(_)) => usage("--shared and --permits: a permit is not shared"),
            ([_, _, ..], true, _) => usage("--shared: of one lock only"),
            ([_, _, ..], _, Some(_)) => usage("--permits: of one name only"),
            _ => Ok(()),
        }
    }
}

impl Held {
    /// The fencing token; a reader's is that of the last writer.
    pub(crate) fn token(&self) -> u64 {
        match self {
            Held::Lock(it) => it.fencing_token().get(),
            Held::Read(it) => it.last_writer().get(),
            Held::Permit(it) => it.fencing_token().get(),
        }
    }

    /// Which of the permits it is.
    pub(crate) fn slot(&self) -> Option<usize> {
        match self {
            Held::Permit(it) => Some(it.slot()),
            Held::Lock(_) | Held::Read(_) => None,
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Held::Lock(it) => it.remaining(),
            Held::Read(it) => it.remaining(),
            Held::Permit(it) => it.remaining(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Lost> {
        match self {
            Held::Lock(it) => it.check(),
            Held::Read(it) => it.check(),
            Held::Permit(it) => it.check(),
        }
    }

    pub(crate) fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        match self {
            Held::Lock(it) => it.on_lost(callback),
            Held::Read(it) => it.on_lost(callback),
            Held::Permit(it) => it.on_lost(callback),
        }
    }

    pub(crate) fn release(self) -> Result<Released, ReleaseError> {
        match self {
            Held::Lock(it) => it.release(),
            Held::Read(it) => it.release(),
            Held::Permit(it) => it.release(),
        }
    }
}
