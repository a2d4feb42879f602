//! The nodes: a session, a connection and a worker for each, and the fan-out to all of them.

pub(crate) mod connect;
pub(crate) mod fanout;
pub(crate) mod give_backs;
mod node_log;
pub(crate) mod primary;
pub(crate) mod server;
pub(crate) mod worker;
