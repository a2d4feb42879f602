//! The nodes: a connection and a worker for each, and one door to all of them.

mod belief;
pub(crate) mod cluster;
pub(crate) mod connect;
pub(crate) mod contacts;
pub(crate) mod deliver;
pub(crate) mod drive;
pub(crate) mod events;
pub(crate) mod fanout;
pub(crate) mod finder;
pub(crate) mod job;
pub(crate) mod joint;
pub(crate) mod lane;
pub(crate) mod leaving;
pub(crate) mod link;
pub(crate) mod load;
mod member;
mod members;
pub(crate) mod memory;
pub(crate) mod node;
pub(crate) mod outgoing;
mod probe;
pub(crate) mod queue;
pub(crate) mod resend;
pub(crate) mod sets;
mod settle;
pub(crate) mod status;
pub(crate) mod worker;
