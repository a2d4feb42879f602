//! The command `quorlock`, as a user runs it, on real servers.
#![allow(
    clippy::disallowed_methods,
    reason = "tests start threads and read clocks themselves"
)]

mod bench;
mod change;
mod doctor;
mod hold;
mod ls;
mod once;
mod one_bad_server;
mod release;
mod run;
mod schema;
mod secrets;
mod sessions;
mod settings;
mod stalls;
mod status;
mod support;
mod variables;
mod wait;
