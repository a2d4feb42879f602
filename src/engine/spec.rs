//! What a lock is and how its calls take it, as data.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, NAME_MAX};
use crate::engine::park::CancelHandle;
use crate::error::AcquireError;
use crate::ids::LockName;
use crate::logic::acquire_round::Rule;
use crate::logic::lease;
use crate::observer::ObservedLock;
use crate::wire::Plan;

/// The description of a lock: shared by the lock kind, its calls under way and the hold that they win.
#[derive(Clone)]
pub(crate) struct LockSpec {
    /// In logs and errors.
    pub(crate) name: LockName,
    /// Of several locks that are taken together, in the order of the plan; none otherwise.
    pub(crate) names: Arc<[LockName]>,
    pub(crate) plan: Plan,
    /// As the caller gave it, not checked: see [`LockSpec::ttl`].
    pub(crate) given_ttl: Duration,
    pub(crate) renew: bool,
    pub(crate) cancel: Option<CancelHandle>,
    /// What the program calls locks of this sort, for its observer.
    pub(crate) class: Option<Arc<str>>,
}

impl LockSpec {
    /// The lock called `name` with the options of its manager.
    pub(crate) fn new(config: &Config, name: &[u8], plan: Plan) -> LockSpec {
        LockSpec {
            name: LockName::new(name),
            names: Arc::default(),
            plan,
            given_ttl: config.ttl,
            renew: config.renew,
            cancel: None,
            class: None,
        }
    }

    /// For the observer.
    pub(crate) fn observed(&self) -> ObservedLock {
        ObservedLock::new(&self.name, self.class.as_ref())
    }

    /// How many may hold it.
    pub(crate) fn rule(&self) -> Rule {
        if self.plan.is_shared {
            Rule::Shared
        } else {
            Rule::Exclusive
        }
    }

    /// The same for a hold of this slot, of a semaphore.
    pub(crate) fn of_slot(self: &Arc<LockSpec>, slot: Option<u8>) -> Arc<LockSpec> {
        let Some(slot) = slot else {
            return Arc::clone(self);
        };
        Arc::new(LockSpec {
            plan: self.plan.of_slot(slot),
            ..LockSpec::clone(self)
        })
    }

    /// The ttl that nodes are asked for: whole milliseconds.
    pub(crate) fn ttl(&self) -> Duration {
        lease::whole_millis(self.given_ttl)
    }

    /// Whether there can be such a lock. Asks no node.
    pub(crate) fn check(&self, config: &Config) -> Result<(), AcquireError> {
        check_name(&self.plan)?;
        config
            .ttl_problem(self.given_ttl)
            .map_or(Ok(()), |problem| Err(AcquireError::BadTtl(problem)))
    }
}

/// Whether a lock can be called so.
pub(crate) fn check_name(plan: &Plan) -> Result<(), AcquireError> {
    if NAME_MAX < plan.key_len {
        return Err(AcquireError::NameTooLong {
            len: plan.key_len,
            max: NAME_MAX,
        });
    }
    if plan.is_reserved {
        return Err(AcquireError::NameReserved);
    }
    Ok(())
}
