//! What all parts of a manager share.

use std::sync::Arc;

use crate::config::Config;
use crate::engine::listeners::Callbacks;
use crate::engine::nodes::fanout::Fanout;
use crate::engine::nodes::server::NodeEvents;
use crate::engine::process::Process;
use crate::engine::round::admission::Admission;
use crate::engine::schedule::Schedule;
use crate::engine::wait::queues::Queues;
use crate::ids::NodeId;
use crate::logic::outage::Outage;
use crate::logic::retries::Retries;
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex};
use crate::wire::HandedOver;

/// Hands on what the nodes report.
pub(crate) struct NodeEventHandler {
    pub(crate) queues: Arc<Queues>,
    pub(crate) schedule: Arc<Schedule>,
}

impl NodeEvents for NodeEventHandler {
    fn handed_over(&self, node: NodeId, notice: &HandedOver) -> bool {
        self.queues.handed_over(node, notice)
    }

    fn clock_stepped(&self) {
        self.schedule.make_all_due();
    }
}

/// Shared by callers, guards and the renewal thread. Holds no thread, so that no thread keeps itself alive.
pub(crate) struct ManagerState {
    pub(crate) config: Config,
    pub(crate) fanout: Fanout,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) queues: Arc<Queues>,
    /// Since when no majority answers acquisitions.
    pub(crate) outage: Mutex<Outage>,
    /// Extensions that failed.
    pub(crate) retries: Mutex<Retries>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) next_lock: AtomicU64,
    /// The log has said that calls wait until servers have a vote.
    pub(crate) logged_quarantine: AtomicBool,
    pub(crate) callbacks: Callbacks,
    pub(crate) process: Process,
}
