//! What the records of all servers have shown, for all sessions of a manager.

use std::sync::atomic::Ordering;

use crate::session::record_rules::RecordRules;
use crate::sys::sync::{AtomicBool, AtomicU64};

/// See the module.
#[derive(Debug)]
pub(crate) struct Records {
    settings: RecordRules,
    max_ttl: AtomicU64,
    is_used: AtomicBool,
}

impl Records {
    pub(crate) fn new(settings: RecordRules) -> Records {
        Records {
            settings,
            max_ttl: AtomicU64::new(0),
            is_used: AtomicBool::new(false),
        }
    }

    /// The rules as they are now.
    pub(crate) fn rules(&self) -> RecordRules {
        let mut rules = self.settings;
        rules.max_ttl = self.max_ttl.load(Ordering::Relaxed);
        rules.is_used = self.is_used.load(Ordering::Relaxed);
        rules
    }

    /// All records are to have this `max_ttl`, or more.
    pub(crate) fn raise(&self, max_ttl: u64) {
        let mut rules = self.rules();
        let before = rules.max_ttl;
        rules.raise(max_ttl);
        if before < rules.max_ttl {
            self.max_ttl.fetch_max(rules.max_ttl, Ordering::Relaxed);
        }
    }

    /// A lock is asked for.
    pub(crate) fn note_use(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }
}
