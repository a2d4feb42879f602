//! Claims about nodes that are reached by TLS: real Redis servers, behind what speaks TLS for them.
#![allow(
    clippy::disallowed_methods,
    reason = "tests start threads and read clocks themselves"
)]

mod bad_nodes;
mod certificates;
mod files;
mod locks;
mod own_tls;
mod sentinels;
mod setting_up;
mod support;
