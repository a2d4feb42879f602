//! Stand-ins for servers.

pub(crate) mod store;
