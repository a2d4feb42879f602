//! The nodes: a connection and a worker for each, and one door to all of them.

pub(crate) mod connect;
pub(crate) mod deliver;
pub(crate) mod drive;
pub(crate) mod events;
pub(crate) mod fanout;
mod greet;
pub(crate) mod job;
pub(crate) mod leaving;
pub(crate) mod link;
pub(crate) mod load;
mod plaintext_check;
pub(crate) mod primary;
pub(crate) mod records;
pub(crate) mod resend;
pub(crate) mod server;
pub(crate) mod status;
pub(crate) mod worker;
