//! The command `quorlock`, as a user runs it, on real servers.
#![allow(clippy::disallowed_methods, reason = "tests start threads and read clocks themselves")]

mod hold;
mod run;
mod status;
mod support;
