//! A node of several servers: a group, of which one is the master, or a cluster, whose masters share the slots.

mod routes;
pub(crate) mod scout;
mod settle;
pub(crate) mod shards;
