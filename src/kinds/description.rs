//! What all kinds have in common: a lock, and the manager that takes it.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, OnceLock};

use crate::engine::{Engine, LockSpec};
use crate::error::AcquireError;
use crate::inspection::Inspection;
use crate::lock::{Hold, LockGuard, Patience, acquire};
use crate::logic::validity;
use crate::wire::{KeyTtls, Plan};

/// A lock, and the manager that takes it.
#[derive(Clone)]
pub(super) struct Description {
    engine: Arc<Engine>,
    spec: Arc<LockSpec>,
    /// What a reader takes, once one has been asked for.
    reader: OnceLock<Arc<LockSpec>>,
}

// A description never changes once it is made: see `LockManager`.
impl UnwindSafe for Description {}
impl RefUnwindSafe for Description {}

impl Description {
    /// The lock called `name`. `plan` gets the manager's prefix.
    pub(super) fn new(
        engine: &Arc<Engine>,
        name: &[u8],
        plan: impl FnOnce(&[u8], KeyTtls) -> Plan,
    ) -> Description {
        let config = &engine.shared().config;
        let ttls = KeyTtls {
            fence: config.fencing_ttl.map_or(0, validity::millis),
        };
        let mut plan = plan(&config.prefix, ttls);
        plan.label = config.owner_label.clone();
        let spec = Arc::new(LockSpec::new(config, name, plan));
        Description {
            engine: Arc::clone(engine),
            spec,
            reader: OnceLock::new(),
        }
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(super) fn spec(&self) -> &LockSpec {
        &self.spec
    }

    pub(super) fn spec_mut(&mut self) -> &mut LockSpec {
        self.reader = OnceLock::new();
        Arc::make_mut(&mut self.spec)
    }

    pub(super) fn name(&self) -> &[u8] {
        self.spec.name.as_bytes()
    }

    /// Whether there can be such a lock. Asks no node.
    pub(super) fn check(&self) -> Result<(), AcquireError> {
        self.spec.check(&self.engine.shared().config)
    }

    /// What the nodes store about this lock.
    pub(super) fn inspect(&self) -> Result<Inspection, AcquireError> {
        self.engine.shared().check_name(self.name())?;
        self.engine
            .operate(|shared| shared.inspect(self.name(), None))
    }

    /// The same for each of these names, or slots of a name. An unresponsive node delays the first answer only: it is skipped
    /// until it responds.
    pub(super) fn inspect_each(
        &self,
        each: &[(&[u8], Option<u8>)],
    ) -> Result<Vec<Inspection>, AcquireError> {
        each.iter()
            .try_for_each(|(name, _)| self.engine.shared().check_name(name))?;
        self.engine.operate(|shared| {
            each.iter()
                .map(|(name, slot)| shared.inspect(name, *slot))
                .collect()
        })
    }

    // Not `acquire`: rustc would suggest it where `lock` is called by that name.
    pub(super) fn take(&self, patience: Patience) -> Result<LockGuard, AcquireError> {
        self.check()?;
        acquire(&self.engine, &self.spec, patience).map(LockGuard::new)
    }

    /// For reading: beside other readers.
    pub(super) fn take_read(&self, patience: Patience) -> Result<Hold, AcquireError> {
        self.check()?;
        let reader = || {
            Arc::new(LockSpec {
                plan: self.spec.plan.to_read(),
                ..LockSpec::clone(&self.spec)
            })
        };
        acquire(&self.engine, self.reader.get_or_init(reader), patience)
    }
}
