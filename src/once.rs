//! Jobs that run once per period in the whole fleet, and work that is done once:
//! [`LockManager::once`](crate::LockManager::once).
//!
//! A lock lets the second caller in as soon as the first one has finished. A [`Job`] also records
//! each finished run on the nodes, so that later callers of the same period find it. Nothing is
//! recorded before a success: a crash costs a repetition, never the run.
//! [`guide::once`](crate::guide::once) has programs and the limits.

mod job;
mod rules;

pub use job::{Job, Once, OnceError, Run, WhenUnsure};
pub use rules::{RunRecord, RunState};

#[cfg(test)]
pub(crate) use rules::{Due, NodeReply, Verdict, judge};
