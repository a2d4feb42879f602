//! The command `quorlock`, as a user runs it, on real servers.

mod status;
mod support;
