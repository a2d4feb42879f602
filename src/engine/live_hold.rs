//! Held locks: what a guard stands for, how it ends and is extended, and the thread that does so.

pub(crate) mod extend;
pub(crate) mod held;
pub(crate) mod renewal;
