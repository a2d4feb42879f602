//! Fencing tokens: numbers that grow with every holder of a lock.
//!
//! Each node keeps a counter per lock. A round carries a proposal. A node that grants the lock also
//! *accepts* the proposal if that is larger than its counter, and then the proposal is its counter.
//! If a majority granted and accepted, the proposal is the token, in one round trip.
//!
//! If counters were ahead, one *raise* follows: it offers a larger number to the nodes. A node
//! takes that number only while its lock key still holds our value, and only if its counter is
//! smaller. The majority then consists of exactly the nodes that took it.
//!
//! Why it is right: two holders' majorities share a node. The holder counted there first wrote its
//! token while its key was set. The other's grant needed the key gone, so it came later, and it
//! counted only with a number strictly larger than the counter there. So at every common node
//! tokens differ and have the order of the grants. This needs no time and no clocks, as long as
//! nodes keep their counters.
//!
//! A node without its data votes again after a quarantine of the longest ttl. Every token that it
//! may have known was proposed before that, and was at most half of that time ahead of its clock:
//! nodes refuse other proposals, unless they are one more than the counter. So the next token is
//! larger if nodes' clocks agree to within the other half, whatever the clients' clocks show, and
//! if no counter was ahead of them: time makes up for the missing counter. The node enforces that
//! itself: without a counter the end of its quarantine takes its place. `tests::model::fencing`
//! shows the conditions, and `guide::safety` explains them.

/// First number above all tokens: scripts compare larger ones inexactly, as floating-point numbers.
pub(crate) const LIMIT: u64 = 1 << 53;

/// Longest lead of a proposal over the time, caused by a counter. Nodes without that counter refuse
/// a proposal that is ahead of their clocks by half a quarantine: at least twice as much.
const AHEAD_MAX: u64 = 25_000;
/// Longest lead of a single node's counter over a proposal that still counts.
const COUNTER_AHEAD_MAX: u64 = 24 * 3_600 * 1_000_000;

/// The largest plausible one of the nodes' `counters` in a round with this `proposal`.
///
/// A number far ahead counts only if more than `spare` nodes show it, or a larger one: a majority
/// exists without lying nodes, and a single node must not use up the range of tokens.
pub(crate) fn largest_seen(
    counters: impl Iterator<Item = u64>,
    proposal: u64,
    spare: usize,
) -> u64 {
    let mut counters: Vec<u64> = counters.collect();
    counters.sort_unstable_by(|a, b| b.cmp(a));
    let limit = proposal.saturating_add(COUNTER_AHEAD_MAX);
    let plausible = counters
        .iter()
        .copied()
        .find(|it| *it <= limit)
        .unwrap_or(0);
    plausible.max(counters.get(spare).copied().unwrap_or(0))
}

/// The number to propose: the [time](crate::logic::clock_offset::time_for_all) in microseconds, or
/// one more than the largest counter seen.
///
/// A counter far ahead is left to the raise, which costs a round: nodes without that counter would
/// take the proposal for one of a wrong clock.
///
/// `None` once the range is used up: in the year 2255, or by a counter of another program.
pub(crate) fn propose(time: u64, seen: u64) -> Option<u64> {
    let next = above(seen)?;
    let proposal = if next <= time.saturating_add(AHEAD_MAX) {
        time.max(next)
    } else {
        time
    };
    (proposal < LIMIT).then_some(proposal)
}

/// The smallest token above `seen`.
pub(crate) fn above(seen: u64) -> Option<u64> {
    seen.checked_add(1).filter(|it| *it < LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proposal_is_the_time_or_above_the_counters_seen() {
        assert_eq!(propose(1_000, 5), Some(1_000));
        assert_eq!(propose(1_000, 1_000), Some(1_001));
        assert_eq!(propose(1_000, 7_000), Some(7_001));
        let most = 25_000;
        assert_eq!(propose(1_000, 999 + most), Some(1_000 + most));
        assert_eq!(
            propose(1_000, 1_000 + most),
            Some(1_000),
            "left to the raise"
        );
    }

    #[test]
    fn a_counter_far_ahead_counts_only_if_a_minority_cannot_have_shown_it() {
        let now = 1_700_000_000_000_000;
        let far = LIMIT - 1;
        let seen = |counters: &[u64]| largest_seen(counters.iter().copied(), now, 1);
        assert_eq!(seen(&[]), 0);
        assert_eq!(seen(&[5, now + 7, 3]), now + 7);
        assert_eq!(
            seen(&[far, 5, 3]),
            5,
            "a single node does not use up the range"
        );
        assert_eq!(seen(&[far]), 0);
        assert_eq!(seen(&[far, far - 9, 3]), far - 9);
        let day = 86_400_000_000;
        assert_eq!(
            (seen(&[now + day, 3]), seen(&[now + day + 1, 3])),
            (now + day, 3)
        );
    }

    #[test]
    fn tokens_are_exact_as_double_precision_numbers() {
        assert_eq!(LIMIT, 9_007_199_254_740_992);
        assert_eq!(propose(LIMIT - 9, LIMIT - 2), Some(LIMIT - 1));
        assert_eq!(propose(0, LIMIT - 1), None);
        assert_eq!(propose(LIMIT, 0), None);
        assert_eq!(propose(0, u64::MAX), None);
        assert_eq!(above(LIMIT - 1), None);
    }
}
