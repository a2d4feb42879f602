//! What all parts of a manager share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::config::Config;
use crate::engine::fanout::Fanout;
use crate::engine::renewal::Schedule;
use crate::stats::Counters;

/// Shared by callers, guards, workers and the renewal. Holds no thread, so that no thread keeps itself alive.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) fanout: Fanout,
    pub(crate) schedule: Schedule,
    pub(crate) counters: Arc<Counters>,
    pub(crate) next_lock: AtomicU64,
    /// The process that has the threads. A child after a fork has copies of everything but them, and its copies of
    /// the mutexes may be locked for ever: look here before locking anything.
    process: u32,
}

impl Core {
    pub(crate) fn new(config: Config, fanout: Fanout, counters: Arc<Counters>) -> Core {
        let schedule = Schedule::new();
        Core { config, fanout, schedule, counters, next_lock: AtomicU64::new(0), process: std::process::id() }
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }
}
