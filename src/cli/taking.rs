//! Taking what a command is to hold: a lock, several, a reader's, or a permit.

use std::process::ExitCode;
use std::time::Duration;

use quorlock::{AcquireError, CancelHandle, LockGuard, LockManager, Lost, Permit, ReadGuard, ReleaseError, Released};

use crate::args::{duration, switch};
use crate::exit::{Exit, Failed};

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
        let name = self.names.first().map_or("", String::as_str);
        if let Some(permits) = self.permits {
            let permits = locks.semaphore(name, permits).cancelled_by(cancel);
            let taken = match self.patience() {
                None => permits.acquire(),
                Some(time) => permits.try_acquire_for(time),
            };
            return Ok(Held::Permit(taken?));
        }
        if self.shared {
            let lock = locks.rw_lock(name).cancelled_by(cancel);
            let taken = match self.patience() {
                None => lock.read(),
                Some(time) => lock.try_read_for(time),
            };
            return Ok(Held::Read(taken?));
        }
        Ok(Held::Lock(self.take_all(locks, cancel)?))
    }

    fn take_all(&self, locks: &LockManager, cancel: &CancelHandle) -> Result<LockGuard, AcquireError> {
        let patience = self.patience();
        if let [name] = &self.names[..] {
            let lock = locks.mutex(name).cancelled_by(cancel);
            return patience.map_or_else(|| lock.lock(), |time| lock.try_lock_for(time));
        }
        let lock = locks.multi(&self.names).cancelled_by(cancel);
        patience.map_or_else(|| lock.lock(), |time| lock.try_lock_for(time))
    }

    /// How it ends if nothing was taken: that the lock is not to be had is no fault.
    pub(crate) fn end(&self, failed: Failed, json: bool) -> Result<ExitCode, Failed> {
        match failed.exit {
            Exit::Held => {
                if !self.quiet {
                    failed.tell(json);
                }
                Ok(ExitCode::from(self.conflict_exit_code.unwrap_or(Exit::Held.number())))
            }
            Exit::Signal(_) if self.quiet => Ok(failed.exit.code()),
            _ => Err(failed),
        }
    }

    fn patience(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.wait }
    }

    fn check(&self) -> Result<(), Failed> {
        let usage = |reason: &str| Err(Failed::new(Exit::Usage, reason));
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
