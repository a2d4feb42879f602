//! Decisions, and nothing else: facts in, steps out.
//!
//! No I/O, no clock, no thread, no log. `now` is an argument everywhere, read once per step by the
//! caller.

pub(crate) mod acquire_round;
mod advice;
pub(crate) mod ballot;
pub(crate) mod clock_offset;
pub(crate) mod eligibility;
pub(crate) mod lease;
pub(crate) mod listing;
mod merged_inspection;
pub(crate) mod min_rtt;
pub(crate) mod outage;
pub(crate) mod pause;
pub(crate) mod quarantines;
pub(crate) mod retries;
pub(crate) mod round_limit;
pub(crate) mod run_ids;
mod rw_counts;
pub(crate) mod tally;
pub(crate) mod token;

pub(crate) use ballot::quorum;
