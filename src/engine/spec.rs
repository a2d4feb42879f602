//! A lock and how its calls take it, as data.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, NAME_MAX};
use crate::engine::park::CancelHandle;
use crate::error::AcquireError;
use crate::ids::LockName;
use crate::logic::acquire_round::Rule;
use crate::logic::lease;
use crate::observer::ObservedLock;
use crate::wire::{KeyTtls, LockCommands};

/// Description of a lock, shared by the lock kind, its calls under way and their hold.
#[derive(Clone)]
pub(crate) struct LockSpec {
    /// Name for logs and errors.
    pub(crate) name: LockName,
    /// Names of several locks taken together, in the order of the commands; none otherwise.
    pub(crate) names: Arc<[LockName]>,
    pub(crate) commands: LockCommands,
    /// Unchecked ttl of the caller: see [`LockSpec::ttl`].
    pub(crate) given_ttl: Duration,
    pub(crate) renew: bool,
    pub(crate) cancel: Option<CancelHandle>,
    /// The program's class of this lock, for its observer.
    pub(crate) class: Option<Arc<str>>,
}

impl LockSpec {
    /// The lock `name` with the options of its manager.
    pub(crate) fn new(config: &Config, name: &[u8], commands: LockCommands) -> LockSpec {
        LockSpec {
            name: LockName::new(name),
            names: Arc::default(),
            commands,
            given_ttl: config.ttl,
            renew: config.renew,
            cancel: None,
            class: None,
        }
    }

    /// Life of the keys that a lock with these options leaves on a node.
    pub(crate) fn key_ttls(config: &Config) -> KeyTtls {
        // A lock that outlives a quarantine could have two holders.
        let longest = config.longest_ttl().unwrap_or(lease::FIRST_LIFE);
        KeyTtls {
            fence: config.fencing_ttl.map_or(0, lease::millis),
            handed_over_ms: lease::millis(longest.min(lease::FIRST_LIFE)),
        }
    }

    /// For the observer.
    pub(crate) fn observed(&self) -> ObservedLock {
        ObservedLock::new(&self.name, self.class.as_ref())
    }

    /// Rule for the number of holders.
    pub(crate) fn rule(&self) -> Rule {
        if self.commands.is_shared {
            Rule::Shared
        } else {
            Rule::Exclusive
        }
    }

    /// The same for a hold of this slot, of a semaphore.
    pub(crate) fn of_slot(self: &Arc<LockSpec>, slot: Option<u8>) -> Arc<LockSpec> {
        match slot {
            Some(slot) => self.with_commands(self.commands.of_slot(slot)),
            None => Arc::clone(self),
        }
    }

    /// The same for one of several readers.
    pub(crate) fn to_read(&self) -> Arc<LockSpec> {
        self.with_commands(self.commands.to_read())
    }

    fn with_commands(&self, commands: LockCommands) -> Arc<LockSpec> {
        Arc::new(LockSpec {
            commands,
            ..self.clone()
        })
    }

    /// The ttl in commands: whole milliseconds.
    pub(crate) fn ttl(&self) -> Duration {
        lease::whole_millis(self.given_ttl)
    }

    /// Checks the description. Asks no node.
    pub(crate) fn check(&self, config: &Config) -> Result<(), AcquireError> {
        check_name(&self.commands)?;
        config
            .ttl_problem(self.given_ttl)
            .map_or(Ok(()), |problem| Err(AcquireError::BadTtl(problem)))
    }
}

/// Checks the names of a lock.
pub(crate) fn check_name(commands: &LockCommands) -> Result<(), AcquireError> {
    if NAME_MAX < commands.key_len {
        return Err(AcquireError::NameTooLong {
            len: commands.key_len,
            max: NAME_MAX,
        });
    }
    if commands.is_reserved {
        return Err(AcquireError::NameReserved);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_handed_over_lives_no_longer_than_any_other() {
        let long = Duration::from_secs(5);
        for (max_ttl, ttl, handed_over_ms) in [
            (Some(Duration::from_millis(600)), long, 600),
            (Some(long), long, 1_000),
            (Some(Duration::from_secs(1)), long, 1_000),
        ] {
            let config = Config {
                max_ttl,
                ttl,
                fencing_ttl: None,
                ..Config::default()
            };
            assert_eq!(
                LockSpec::key_ttls(&config),
                KeyTtls {
                    fence: 0,
                    handed_over_ms
                }
            );
        }
        // Without an end to ttls there is no quarantine for it to outlive.
        let endless = Config {
            max_ttl: None,
            quarantine: false,
            ..Config::default()
        };
        assert_eq!(LockSpec::key_ttls(&endless).handed_over_ms, 1_000);
    }
}
