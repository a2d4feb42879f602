//! State shared by all parts of a manager.

use std::sync::Arc;

use crate::config::Config;
use crate::engine::admission::Admission;
use crate::engine::listeners::Callbacks;
use crate::engine::nodes::fanout::Fanout;
use crate::engine::nodes::server::NodeEvents;
use crate::engine::process::Process;
use crate::engine::queue::Queues;
use crate::engine::schedule::Schedule;
use crate::ids::NodeId;
use crate::logic::outage::Outage;
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex};
use crate::wire::HandedOver;

/// Forwards the events of the nodes.
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

/// Shared by callers, guards and the renewal thread. Has no thread, so that no thread keeps itself
/// alive.
pub(crate) struct ManagerState {
    pub(crate) config: Config,
    pub(crate) fanout: Fanout,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) queues: Arc<Queues>,
    /// The outage, if no majority answers acquisitions.
    pub(crate) outage: Mutex<Outage>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) next_lock: AtomicU64,
    /// Whether the log has a line about waiting for quarantined servers.
    pub(crate) logged_quarantine: AtomicBool,
    pub(crate) callbacks: Callbacks,
    pub(crate) process: Process,
}
