//! The locks that a manager holds, for people.

use std::time::Duration;

use crate::ids::{FencingToken, NodeId};
use crate::observer::event::ObservedLock;

/// A lock that a manager holds: [`LockManager::held`](crate::LockManager::held).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldLock {
    /// Which.
    pub lock: ObservedLock,
    /// The number of the hold.
    pub token: FencingToken,
    /// How long it has been held.
    pub age: Duration,
    /// Lease left unless the lock is extended.
    pub left: Duration,
    /// Nodes with a vote that have not confirmed it since the last extension was sent. A lost key is restored after the next one.
    pub missing_on: Vec<NodeId>,
}
