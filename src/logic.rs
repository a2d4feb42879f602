//! Decisions, and nothing else: facts in, steps out.
//!
//! No I/O, no clock, no thread, no log. `now` is an argument everywhere, read once per step by the caller.

pub(crate) mod acquire;
pub(crate) mod admission;
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
pub(crate) mod longest;
pub(crate) mod outage;
pub(crate) mod pace;
pub(crate) mod run_ids;
pub(crate) mod sets;
mod shared;
pub(crate) mod slots;
pub(crate) mod tally;
pub(crate) mod token;
pub(crate) mod validity;
pub(crate) mod wait;

/// How many nodes make a majority of `nodes` *configured* ones; never count connected ones instead.
pub(crate) fn quorum(nodes: usize) -> usize {
    (nodes / 2).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3_a_quorum_is_more_than_half_of_the_configured_nodes() {
        let quorums: Vec<_> = (1..=7).map(quorum).collect();
        assert_eq!(quorums, [1, 2, 2, 3, 3, 4, 4]);
    }
}
