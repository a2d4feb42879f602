//! Calls of this manager that wait for the same lock: their queues, and the way of one call along its queue.

pub(crate) mod queue;
pub(crate) mod queued_call;
pub(crate) mod queues;
