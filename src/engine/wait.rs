//! Waiting calls of this manager: a queue per lock, and the path of one call through its queue.

pub(crate) mod queue;
pub(crate) mod queued_call;
pub(crate) mod queues;
