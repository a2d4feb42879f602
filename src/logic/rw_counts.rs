//! The number of the last writer, for readers.
//!
//! A reader has no token of its own. Its number is at least the token of every writer counted
//! before it at a common node, and below that of every writer counted after it there. So storage
//! that rejects numbers below the largest one rejects a reader that acts on data from before the
//! last write.
//!
//! A node that admits a reader shows its counter. If a majority shows the same counter, that is the
//! number: the last writer left it everywhere. Otherwise one raise lifts the lower counters to the
//! largest, only where the reader's entry exists, and the nodes with that number then are the
//! majority.
//!
//! Why it is right: at a common node the writer's token was written while its key was set. The
//! reader's number was the counter at its admission, or was written while its entry existed. One of
//! the two came after the end of the other. The counter never falls, and a writer counts only with
//! a token strictly above it. The largest counter of any majority would not do: it may be the
//! counter of a writer that is still to come on other nodes of this majority.

use crate::answer::{Answer, LockStatus};
use crate::logic::ballot::Votes;
use crate::logic::token;

/// The common number of a majority, after a majority has admitted the reader; otherwise the target
/// of the raise. `proposal`: the number for a missing counter.
pub(super) fn last_writer(votes: &Votes, proposal: u64) -> Result<u64, u64> {
    let shared = || votes.iter().filter(|it| it.is(LockStatus::Shared));
    let counters = || shared().filter_map(Answer::counter);
    let agreed = counters().find(|one| votes.quorum() <= counters().filter(|it| it == one).count());
    // A number far ahead on a single node does not count: nor can that node.
    agreed.ok_or_else(|| token::largest_seen(counters(), proposal, votes.spare()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::{NodeFailure, RoundLoss};
    use crate::ids::NodeId;
    use crate::logic::acquire_round::{AcquireEnd, AcquireRound, RaiseRound, Rule};
    use crate::logic::ballot::{Ballot, Round};
    use crate::time::Moment;

    const TAKEN: Answer = Answer::of(LockStatus::Raised);
    const GONE: Answer = Answer::of(LockStatus::NotOurs);
    const FAILED: Answer = Answer::Failed(NodeFailure::Stalled);

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds), Duration::from_secs(seconds))
    }

    fn shared(counter: u64) -> Answer {
        Answer::with_counter(LockStatus::Shared, counter)
    }

    fn held() -> Answer {
        Answer::with_counter(LockStatus::Held, 9)
    }

    fn end<R: Round>(nodes: usize, round: R, votes: &[Answer], now: Moment) -> Option<R::End> {
        let mut ballot = Ballot::new(nodes, round);
        for (node, vote) in (0..).map(NodeId::new).zip(votes) {
            ballot.on_vote(node, vote.clone(), now);
        }
        ballot.end()
    }

    fn read(votes: &[Answer]) -> Option<AcquireEnd> {
        end(
            3,
            AcquireRound::new(Rule::Shared, 100, Some(at(10))),
            votes,
            at(1),
        )
    }

    #[test]
    fn a_reader_is_in_when_a_majority_shows_the_same_counter() {
        let won = |token| Some(AcquireEnd::Won { token });
        assert_eq!(read(&[shared(7)]), None);
        assert_eq!(read(&[shared(7), shared(7)]), won(7));
        assert_eq!(read(&[FAILED, shared(7), shared(7)]), won(7));
        assert_eq!(
            read(&[held(), shared(7), shared(7)]),
            won(7),
            "a writer has a minority, and its counter is no matter"
        );
        assert_eq!(
            read(&[held(), shared(7), FAILED]),
            Some(AcquireEnd::Lost(RoundLoss::Held))
        );
        let late = end(
            3,
            AcquireRound::new(Rule::Shared, 100, Some(at(10))),
            &[shared(7), shared(7)],
            at(10),
        );
        assert_eq!(late, Some(AcquireEnd::Lost(RoundLoss::TooLate)));
    }

    #[test]
    fn differing_counters_are_raised_to_the_largest_plausible_one() {
        let lift = |token| Some(AcquireEnd::Raise { token });
        assert_eq!(
            read(&[shared(7), shared(5)]),
            lift(7),
            "the third is not waited for"
        );
        assert_eq!(read(&[held(), shared(5), shared(7)]), lift(7));
        assert_eq!(
            read(&[shared(token::LIMIT - 1), shared(5)]),
            lift(5),
            "one node cannot use up all numbers"
        );
        let five = |votes: &[Answer]| {
            end(
                5,
                AcquireRound::new(Rule::Shared, 100, Some(at(10))),
                votes,
                at(1),
            )
        };
        assert_eq!(five(&[shared(5), shared(7), shared(5)]), lift(7));
    }

    #[test]
    fn a_grant_of_the_other_kind_counts_for_nothing() {
        let other = Answer::of(LockStatus::Accepted);
        assert_eq!(read(&[other.clone(), shared(7)]), None);
        assert_eq!(
            read(&[other, shared(7), FAILED]),
            Some(AcquireEnd::Lost(RoundLoss::NoQuorum))
        );
        let write = AcquireRound::new(Rule::Exclusive, 100, Some(at(10)));
        assert!(matches!(
            end(3, write, &[shared(7), shared(7)], at(1)),
            Some(AcquireEnd::Raise { .. })
        ));
        for (rule, vote, counts) in [
            (Rule::Shared, shared(7), true),
            (Rule::Shared, shared(8), false),
            (Rule::Exclusive, shared(7), false),
            (Rule::Exclusive, Answer::of(LockStatus::Accepted), true),
            (Rule::Shared, Answer::of(LockStatus::Accepted), false),
            (Rule::Shared, TAKEN, true),
            (Rule::Shared, GONE, false),
        ] {
            assert_eq!(rule.counts(&vote, 7), counts, "{rule:?} {vote:?}");
        }
    }

    #[test]
    fn a_readers_raise_is_won_by_a_majority_with_the_number() {
        let raise = |votes: &[Answer]| {
            end(
                3,
                RaiseRound::new(Rule::Shared, 7, Some(at(10))),
                votes,
                at(1),
            )
        };
        let above = Answer::with_counter(LockStatus::NotRaised, 9);
        let won = Some(AcquireEnd::Won { token: 7 });
        assert_eq!(raise(&[above.clone(), TAKEN]), None);
        assert_eq!(raise(&[above.clone(), TAKEN, TAKEN]), won);
        assert_eq!(raise(&[TAKEN, TAKEN]), won);
        assert_eq!(
            raise(&[TAKEN, GONE, above]),
            Some(AcquireEnd::Lost(RoundLoss::Overtaken))
        );
        assert_eq!(
            raise(&[FAILED, FAILED]),
            Some(AcquireEnd::Lost(RoundLoss::NoQuorum))
        );
    }
}
