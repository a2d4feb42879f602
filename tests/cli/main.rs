//! The command `quorlock`, as a user runs it, on real servers.

mod hold;
mod run;
mod status;
mod support;
