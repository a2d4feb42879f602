//! Campaigns: processes that contend for locks on real servers, faults that are done to both, and a judge.
//!
//! | who | what |
//! | --- | --- |
//! | [`conductor`] | starts [`nodes`], clients and the judge, does the [`faults`], heals, and reads the report |
//! | [`steps`] | what is done to nodes that are several servers: groups and [`clusters`] |
//! | [`fleet`] | the clients, from the conductor's side |
//! | [`client`] | a process with a manager of its own that takes locks, works under them and says what it believes |
//! | [`workloads`] | what clients do under each kind of lock |
//! | [`judge`] | has the resource that is to be protected, writes down what clients say ([`history`]) and compares it at the end ([`verdict`]) |
//!
//! A campaign ends with all servers well. Then every client must get a lock, and when the last is gone no key may be left, not
//! even one that would expire. [`judge_tests`] shows that the judge objects to what is wrong.
//!
//! `cargo test` runs a short campaign of everything at once. With `QUORLOCK_LONG=1` each fault is also done alone, and nodes
//! are also groups and clusters.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `QUORLOCK_CAMPAIGN_SECONDS` | how long each campaign lasts; runs all of them |
//! | `QUORLOCK_CAMPAIGN_SEED` | what is done to whom; printed by every campaign |
#![allow(
    clippy::disallowed_methods,
    reason = "tests start threads, sleep and read clocks themselves"
)]

mod alone;
mod client;
mod clusters;
mod conductor;
mod crowd;
mod faults;
mod fleet;
mod guards;
mod history;
mod judge;
mod judge_tests;
mod last;
mod mixed;
mod nodes;
mod options;
mod phase_signals;
mod several;
mod steps;
mod support;
mod verdict;
mod workloads;
