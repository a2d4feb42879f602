//! One round: votes in, a decision out, and an attempt to get a lock that is made of rounds.

pub(crate) mod admission;
pub(crate) mod attempt;
pub(crate) mod outcome;
pub(crate) mod pending;
pub(crate) mod request;
pub(crate) mod run;
