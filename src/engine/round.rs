//! Rounds: votes in, one decision out. Attempts to get a lock, made of rounds, and their admission.

pub(crate) mod admission;
pub(crate) mod attempt;
pub(crate) mod pending;
