//! Commands into bytes, replies into facts. The only place that names the `redis` crate; it does not count votes.

mod address;
mod command;
mod frame;
mod handshake;
mod inbox;
mod keys;
mod plan;
mod refusal;
mod reply;

pub(crate) use address::{Address, Login, Place};
pub(crate) use command::{Command, Kind};
pub(crate) use handshake::{Greeting, Handshake, Next};
pub(crate) use inbox::{Filled, Inbox};
pub(crate) use plan::{Entry, LAST, Lives, Manners, Parting, Plan, greet, meet, vouch};
pub(crate) use reply::{
    AcquireReply, Answer, Canary, ExtendReply, GreetReply, MeetReply, Push, RaiseReply, ReleaseReply, Reply, push,
};
