//! Commands into bytes, replies into facts. The only place that names the `redis` crate; it does not count votes.

mod address;
mod command;
mod conn;
mod frame;
mod handshake;
mod inbox;
mod keys;
mod plan;
mod refusal;
mod reply;
mod script;
mod value;

pub(crate) use address::{Address, Login, Place, Security};
pub(crate) use command::Command;
pub(crate) use conn::{Conn, Event};
pub(crate) use plan::{
    FoundName, KeyTtls, LAST, Looked, Plan, QueueEntry, QueuePolicy, QueueUpdate, ScanPlace, Waiter, greet, list, meet,
    names, present, probe, vouch,
};
pub(crate) use reply::Reply;
pub(crate) use script::Kind;
#[cfg(test)]
pub(crate) use script::Script;
