//! Rounds: votes in, a decision out; attempts to get a lock, which are made of rounds; and which of them may begin now.

pub(crate) mod admission;
pub(crate) mod attempt;
pub(crate) mod pending;
