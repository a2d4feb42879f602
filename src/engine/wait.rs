//! Calls of this manager that wait for a lock.

pub(crate) mod place;
pub(crate) mod queue;
pub(crate) mod queues;
pub(crate) mod ticket;
