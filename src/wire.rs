//! Commands into bytes, replies into facts. The only place that names the `redis` crate; it does
//! not count votes.

mod address;
mod command;
mod conn;
mod frame;
mod keys;
mod lock_commands;
mod login;
mod refusal;
mod reply;
mod script;

pub(crate) use redis::Value;

pub(crate) use address::{Address, Credentials, Endpoint, Security};
pub(crate) use command::Command;
#[cfg(all(test, not(quorlock_shuttle)))]
pub(crate) use command::Destination;
pub(crate) use conn::{Conn, ConnEvent};

pub(crate) use keys::{LockKeys, hash_tag, owner_of};
pub(crate) use lock_commands::{
    Entering, FoundName, KeyTtls, LockCommands, Offer, QueueEntry, QueuePolicy, QueueUpdate,
    ScanPlace, SyncKind, SyncRecord, check, list, sync_record,
};
pub(crate) use login::{Dialogue, answer, log_in, question};
#[cfg(test)]
pub(crate) use redis::parse_redis_value as read_value;
pub(crate) use reply::{HandedOver, Reply};
pub(crate) use script::Kind;
#[cfg(test)]
pub(crate) use script::Script;
