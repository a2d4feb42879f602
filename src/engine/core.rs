//! What all parts of a manager share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::config::Config;
use crate::engine::fanout::Fanout;
use crate::engine::pending::{Pending, Reads, deadline};
use crate::engine::renewal::Schedule;
use crate::ids::NodeSet;
use crate::logic::tally::{ReleaseEnd, ReleaseRound};
use crate::stats::Counters;
use crate::time::Tick;
use crate::wire::Command;

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

    /// One round: the same command to every node that can take it, and the decision.
    pub(crate) fn round<R>(&self, command: Command, pending: &Arc<Pending<R>>, deadline: Tick) -> R::End
    where
        R: Reads + Send + 'static,
        R::End: Copy + Send + 'static,
    {
        let (end, lingers) = self.fanout.round(command, pending, deadline);
        if lingers {
            self.schedule.nudge();
        }
        end
    }

    /// One round of releases.
    pub(crate) fn release_round(
        &self,
        command: Command,
        to: NodeSet,
        keep: Duration,
        pending: &Arc<Pending<ReleaseRound>>,
    ) -> ReleaseEnd {
        let _busy = self.fanout.busy();
        let deadline = deadline(self.fanout.response_timeout());
        let (end, lingers) = self.fanout.release_round(command, to, keep, pending, deadline);
        if lingers {
            self.schedule.nudge();
        }
        end
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }
}
