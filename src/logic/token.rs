//! Fencing tokens: numbers that grow with every holder of a lock.
//!
//! Each node keeps a counter per lock. A round carries a proposal; a node that grants the lock also *accepts* the
//! proposal if it is larger than its counter, and then the proposal is its counter. A majority that granted and
//! accepted makes the proposal the token, in one round trip.
//!
//! If counters were ahead, one *raise* follows: the larger number is offered to the nodes, and a node takes it only
//! while its lock key still holds our value and only if its counter is smaller. The majority is then made of exactly
//! the nodes that took it.
//!
//! Why it is right: two holders' majorities share a node. The one that was counted there first had written its token
//! while its key stood there; the other's grant needed the key gone, so it came later, and was counted only with a
//! number strictly larger than the counter it found. So tokens differ, and are ordered like the grants, at every
//! common node. Time plays no part in this, nor do clocks: the wall clock in a proposal only makes it likely that one
//! round trip is enough, and keeps order after counters were lost.

/// The first number that is not a token any more: above it, a script's floating-point comparison is not exact.
pub(crate) const LIMIT: u64 = 1 << 53;

/// The number to propose: the wall clock's microseconds, or one more than the largest counter seen.
///
/// `None` once the range is used up, which takes until the year 2255 or a counter that is none of ours.
pub(crate) fn propose(wall_micros: u64, seen: u64) -> Option<u64> {
    let proposal = wall_micros.max(above(seen)?);
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
    fn a_proposal_is_the_clock_or_more_than_what_was_seen() {
        assert_eq!(propose(1_000, 5), Some(1_000));
        assert_eq!(propose(1_000, 1_000), Some(1_001));
        assert_eq!(propose(1_000, 7_000), Some(7_001));
    }

    #[test]
    fn tokens_stay_below_what_a_double_can_tell_apart() {
        assert_eq!(propose(0, LIMIT - 2), Some(LIMIT - 1));
        assert_eq!(propose(0, LIMIT - 1), None);
        assert_eq!(propose(LIMIT, 0), None);
        assert_eq!(propose(0, u64::MAX), None);
        assert_eq!(above(LIMIT - 1), None);
    }
}
