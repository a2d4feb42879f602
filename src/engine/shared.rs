//! What all parts of a manager share.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::engine::hold::renewal::Schedule;
use crate::engine::listeners::callbacks::Callbacks;
use crate::engine::nodes::events::Events;
use crate::engine::nodes::fanout::{Fanout, Next, Release};
use crate::engine::process::Process;
use crate::engine::round::admission::Admission;
use crate::engine::round::pending::{Pending, deadline};
use crate::engine::wait::queues::{Queues, Ticket};
use crate::ids::{NodeId, NodeSet};
use crate::logic::outage::Outage;
use crate::logic::tally::{ReleaseEnd, ReleaseRound};
use crate::logic::wait;
use crate::stats::{Counters, count};
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex};
use crate::wire::{Command, Plan};

/// Hands on what the nodes tell.
pub(crate) struct Hub {
    pub(crate) queues: Arc<Queues>,
    pub(crate) schedule: Arc<Schedule>,
}

impl Events for Hub {
    fn released(&self, node: NodeId, key: &[u8], leave: &mut dyn FnMut(Command)) {
        self.queues.tell(node, key, leave);
    }

    fn clock_stepped(&self) {
        self.schedule.look_at_all();
    }

    fn left_unread(&self) {
        self.schedule.nudge();
    }
}

/// Shared by callers, guards, workers and the renewal. Holds no thread, so that no thread keeps itself alive.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) fanout: Fanout,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) queues: Arc<Queues>,
    /// Since when no majority answers acquisitions.
    pub(crate) outage: Mutex<Outage>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) next_lock: AtomicU64,
    /// The log has said that calls wait until servers have a vote.
    pub(crate) said_quarantine: AtomicBool,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) process: Process,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        fanout: Fanout,
        schedule: Arc<Schedule>,
        queues: Arc<Queues>,
        counters: Arc<Counters>,
    ) -> Shared {
        let outage = Mutex::new(Outage::new(wait::longest_pause(config.retry_max)));
        let (next_lock, callbacks, process) = (AtomicU64::new(0), Arc::default(), Process::this());
        let said_quarantine = AtomicBool::new(false);
        let admission = Arc::new(Admission::new(config.response_timeout));
        Shared {
            config,
            fanout,
            schedule,
            counters,
            queues,
            outage,
            admission,
            next_lock,
            said_quarantine,
            callbacks,
            process,
        }
    }

    /// One round of releases. `next` waits for the lock: its acquire goes along, in the same write. `sent` is called when
    /// all nodes have been given it.
    ///
    /// It never waits for its turn. The acquire does not go along if it had to, or could not win: the call then tries by
    /// itself.
    pub(crate) fn release_round(
        &self,
        release: Release,
        pending: &Arc<Pending<ReleaseRound>>,
        next: Option<&Ticket>,
        sent: impl FnOnce(),
    ) -> ReleaseEnd {
        let _busy = self.fanout.busy();
        let _slot = self.admission.enter();
        let deadline = deadline(self.fanout.response_timeout().saturating_mul(self.admission.turns()));
        let prepared = next.and_then(|ticket| {
            // The call pauses before its own round; it would not before one that is made for it.
            let waits = self.fanout.is_behind() || !self.fanout.pause().is_zero();
            let slot = if waits { None } else { self.admission.try_enter() };
            let prepared = slot.map(|slot| ticket.prepare(self, slot));
            let Some(Ok((attempt, command))) = prepared else {
                ticket.make_none();
                return None;
            };
            count(&self.counters.hand_overs);
            Some(Next { ticket, attempt, command: Arc::new(command) })
        });
        let end = self.fanout.release_round(release, pending, prepared, sent, deadline);
        if let Some(ticket) = next {
            // It has slept on until its attempt was decided; if that has not happened it goes on by itself now.
            ticket.wake();
        }
        end
    }

    /// Takes this manager off the waiting lists of a lock, without a wait. `keep`: how long that is worth sending.
    pub(crate) fn say_farewell(&self, key: &[u8], nodes: NodeSet, keep: Duration) {
        self.fanout.release(Plan::leave(key, self.queues.client()), nodes, keep, None);
    }

    /// See [`Process`].
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }
}
