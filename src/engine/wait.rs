//! Calls of this manager that wait for a lock.

pub(crate) mod line;
pub(crate) mod place;
pub(crate) mod queue;
