//! What the nodes report to the floors above them.

use crate::ids::NodeId;
use crate::wire::Plan;

/// Called by the thread that has noticed it, which may be any. Must not block, nor call anything of users.
pub(crate) trait NodeEvents: Send + Sync {
    /// `node` has announced that the lock `key` was released. `leave` is called if no call waits for that, and leaves the
    /// node's waiting list, or those of the plan that it is called with, so that the node announces it to the next client.
    ///
    /// RACE: `leave` is called with the queue of `key` locked. So a call that begins to wait now enters the list after that.
    fn released(&self, node: NodeId, key: &[u8], leave: &mut dyn FnMut(Option<&Plan>));

    /// A node's clock was set forward, and its status says so already.
    fn clock_stepped(&self);
}
