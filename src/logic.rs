//! Decisions, and nothing else: facts in, steps out.
//!
//! No I/O, no clock, no thread, no log. `now` is an argument everywhere, read once per step by the caller.

pub(crate) mod acquire;
pub(crate) mod admission;
mod advice;
pub(crate) mod ballot;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod confirmations;
pub(crate) mod contact;
pub(crate) mod eligibility;
pub(crate) mod group;
mod inspection;
pub(crate) mod lease;
pub(crate) mod listing;
pub(crate) mod outage;
pub(crate) mod quarantine_length;
pub(crate) mod quarantines;
mod quorum;
pub(crate) mod retries;
pub(crate) mod run_ids;
pub(crate) mod sets;
mod shared;
pub(crate) mod slots;
pub(crate) mod tally;
pub(crate) mod token;
pub(crate) mod validity;
pub(crate) mod wait;
pub(crate) mod way;

pub(crate) use quorum::quorum;
