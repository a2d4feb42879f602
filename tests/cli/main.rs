//! The command `quorlock`, as a user runs it, on real servers.

mod doctor;
mod hold;
mod release;
mod status;
mod support;
mod watch;
