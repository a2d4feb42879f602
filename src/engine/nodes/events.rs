//! What the nodes report to the floors above them.

use crate::ids::NodeId;
use crate::wire::HandedOver;

/// Called by the thread that has noticed it, which may be any. Must not block, nor call anything of users.
pub(crate) trait NodeEvents: Send + Sync {
    /// `node` has handed a lock over. False if that is for nobody here: the node gets it back.
    fn handed_over(&self, node: NodeId, notice: &HandedOver) -> bool;

    /// A node's clock was set forward, and its status says so already.
    fn clock_stepped(&self);
}
