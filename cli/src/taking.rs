//! Takes a lock, several locks, a reader's lock or a permit.

use std::process::ExitCode;
use std::time::Duration;

use quorlock::{CancelHandle, Hold, LockManager};

use crate::exit::{Exit, Failed};
use crate::options::duration;

#[derive(Debug, clap::Args)]
pub(crate) struct Taking {
    /// Lock to take; several are taken together, all or none
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Wait at most TIME: 30, 1.5s, 2m [default: forever]
    #[arg(short, long, visible_alias = "timeout", value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Do not wait, even with --wait
    #[arg(short, long, visible_alias = "nonblock")]
    pub(crate) no_wait: bool,
    /// Share the lock with other readers
    #[arg(short, long)]
    pub(crate) shared: bool,
    /// Take the lock alone, even with --shared (default)
    #[arg(short = 'x', long)]
    pub(crate) exclusive: bool,
    /// Take one of N permits instead of a lock
    #[arg(long, value_name = "N", conflicts_with = "shared")]
    pub(crate) permits: Option<usize>,
    /// Exit status if others hold the lock, 0 to 255
    #[arg(short = 'E', long, value_name = "N", default_value_t = Exit::HELD.number())]
    pub(crate) conflict_exit_code: u8,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Report the holder during the wait, and the token
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// A held lock or permit.
pub(crate) struct Held {
    pub(crate) hold: Hold,
    /// The fencing token; a reader's is that of the last writer.
    pub(crate) token: u64,
    pub(crate) is_shared: bool,
    /// The slot of a permit.
    pub(crate) slot: Option<usize>,
}

impl Taking {
    /// Waits until the deadline, or until `cancel` is cancelled.
    pub(crate) fn take(&self, locks: &LockManager, cancel: &CancelHandle) -> Result<Held, Failed> {
        self.check()?;
        let name = self.names.first().map_or("", String::as_str);
        let patience = self.patience();
        let (hold, token, slot): (Hold, _, _) = if let Some(permits) = self.permits {
            let semaphore = locks.semaphore(name, permits).cancelled_by(cancel);
            let permit = semaphore.try_acquire_for(patience)?;
            let token = permit.fencing_token();
            let slot = permit.slot();
            (permit.into(), token, Some(slot))
        } else if self.is_shared() {
            let lock = locks.rw_lock(name).cancelled_by(cancel);
            let reader = lock.try_read_for(patience)?;
            let token = reader.last_writer();
            (reader.into(), token, None)
        } else {
            let guard = match &self.names[..] {
                [name] => locks
                    .mutex(name)
                    .cancelled_by(cancel)
                    .try_lock_for(patience)?,
                names => locks
                    .multi_lock(names)
                    .cancelled_by(cancel)
                    .try_lock_for(patience)?,
            };
            let token = guard.fencing_token();
            (guard.into(), token, None)
        };
        Ok(Held {
            hold,
            token: token.get(),
            is_shared: self.is_shared(),
            slot,
        })
    }

    /// The end without a lock. A lock that others hold is no error.
    pub(crate) fn end(&self, failed: Failed, json: bool) -> Result<ExitCode, Failed> {
        match failed.exit {
            Exit::HELD => {
                if !self.quiet {
                    failed.tell(json);
                }
                Ok(ExitCode::from(self.conflict_exit_code))
            }
            exit if exit.is_signal() && self.quiet => Ok(failed.exit.code()),
            _ => Err(failed),
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared && !self.exclusive
    }

    /// The longest time is no limit.
    fn patience(&self) -> Duration {
        if self.no_wait {
            Duration::ZERO
        } else {
            self.wait.unwrap_or(Duration::MAX)
        }
    }

    pub(crate) fn check(&self) -> Result<(), Failed> {
        let usage = |reason: &str| Err(Failed::new(Exit::USAGE, reason));
        match (&self.names[..], self.shared, self.permits) {
            (names, ..) if names.iter().any(String::is_empty) => {
                usage("a lock name is empty: is a variable unset?")
            }
            ([_, _, ..], true, _) | ([_, _, ..], _, Some(_)) => {
                usage("--shared, --permits: give one name only")
            }
            _ => Ok(()),
        }
    }
}
