//! A node of several servers: a group, of which one is the master, or a cluster, whose masters share the slots.

mod confirm_slot;
mod routes;
pub(crate) mod scout;
pub(crate) mod shards;
