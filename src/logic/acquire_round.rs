//! The rounds of an acquisition: the acquire round, and the raise round that follows where counters were ahead.

use std::sync::Arc;

use crate::answer::{AcquireReply, Answer, RaiseReply, Which};
use crate::error::{NodeAnswer, NodeFailure};
use crate::ids::LockName;
use crate::logic::ballot::{Ballot, Round, Votes};
use crate::logic::rw_counts::{self, LastWriter};
use crate::logic::token;
use crate::time::Moment;

/// How an acquisition round ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AcquireEnd {
    /// Held, with this fencing token.
    Won { token: u64 },
    /// A majority granted, but did not accept the proposal: offer them this token. Not held yet.
    Raise { token: u64 },
    /// Not held. Whatever the nodes granted must be taken back.
    Lost(LossReason),
}

/// Why a round was lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum LossReason {
    /// Someone else holds the lock, or several contenders split the nodes between them.
    #[error("held")]
    Held,
    /// Failures alone keep the majority out of reach.
    #[error("no quorum")]
    NoQuorum,
    /// The answers came when nothing usable of the ttl was left.
    #[error("too late")]
    TooLate,
    /// Too many nodes hold something that is not a lock.
    #[error("key in use")]
    KeyInUse,
    /// Another contender moved the fencing counters during the raise. The lock is free or about to be: try again.
    #[error("overtaken")]
    Overtaken,
}

/// How many may hold the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Rule {
    /// One at a time, with a token of its own.
    Exclusive,
    /// Any number of readers, with the number of the last writer: see [`shared`].
    Shared,
}

impl Rule {
    /// Whether such a vote can be one of the majority that wins with `token`.
    pub(crate) fn counts(self, vote: &Answer, token: u64) -> bool {
        match vote {
            Answer::Acquire(_) if vote.is_accepted() => self == Rule::Exclusive,
            Answer::Acquire(AcquireReply::Shared { counter }) => {
                self == Rule::Shared && *counter == token
            }
            Answer::Raise(RaiseReply::Taken) => true,
            _ => false,
        }
    }
}

/// One acquire round.
#[derive(Debug)]
pub(crate) struct AcquireRound {
    rule: Rule,
    proposal: u64,
    /// The largest counter that was seen before the round.
    known: u64,
    /// The holder's deadline if this round is won; `None` if no clock can show it, and then it cannot be won.
    use_until: Option<Moment>,
    /// The names of a lock that has several, in the order of its commands.
    names: Arc<[LockName]>,
}

impl AcquireRound {
    /// A round that was sent with `proposal`.
    pub(crate) fn new(rule: Rule, proposal: u64, use_until: Option<Moment>) -> AcquireRound {
        AcquireRound {
            rule,
            proposal,
            known: 0,
            use_until,
            names: Arc::default(),
        }
    }

    /// The same, after a counter of `known` was seen.
    pub(crate) fn after(self, known: u64) -> AcquireRound {
        AcquireRound { known, ..self }
    }

    /// The same, of a lock that has several names.
    pub(crate) fn of_names(self, names: &Arc<[LockName]>) -> AcquireRound {
        AcquireRound {
            names: Arc::clone(names),
            ..self
        }
    }
}

impl Round for AcquireRound {
    type End = AcquireEnd;

    fn row(&self, answer: &Answer) -> NodeAnswer {
        let row = NodeAnswer::from(answer);
        match answer
            .which()
            .and_then(|it| self.names.get(usize::from(it)))
        {
            Some(name) => row.about(name.to_string().into()),
            None => row,
        }
    }

    fn decide(&self, votes: &Votes, now: Moment) -> Option<AcquireEnd> {
        let quorum = votes.quorum();
        let slot = leading_slot(votes);
        let granted = votes.count(|it| match self.rule {
            Rule::Exclusive => it.is_granted() && it.slot() == slot,
            Rule::Shared => matches!(it, Answer::Acquire(AcquireReply::Shared { .. })),
        });
        if granted.saturating_add(votes.open()) < quorum {
            return Some(AcquireEnd::Lost(why(votes)));
        }
        if self.use_until.is_none_or(|it| now.has_reached(it)) {
            return Some(AcquireEnd::Lost(LossReason::TooLate));
        }
        if granted < quorum {
            return None;
        }
        if self.rule == Rule::Shared {
            return Some(match rw_counts::last_writer(votes, self.proposal) {
                LastWriter::Agreed(token) => AcquireEnd::Won { token },
                LastWriter::Lift(token) => AcquireEnd::Raise { token },
            });
        }
        // A node that granted with its counter ahead does not order holders: it is not counted. And to be on the safe
        // side, a token must also be larger than the counters of nodes that are not counted, because a counter may have
        // been lost elsewhere.
        let accepted = votes.count(|it| it.is_accepted() && it.slot() == slot);
        let seen = seen(votes, self.proposal).max(self.known);
        if quorum <= accepted && seen < self.proposal {
            return Some(AcquireEnd::Won {
                token: self.proposal,
            });
        }
        // The nodes that are still open are not waited for: one of them may be hung, and a raise is one round trip.
        Some(match token::above(seen.max(self.proposal)) {
            Some(token) => AcquireEnd::Raise { token },
            None => AcquireEnd::Lost(LossReason::KeyInUse),
        })
    }
}

impl Ballot<AcquireRound> {
    /// The largest counter that nodes have shown, counted or not; see [`token::largest_seen`].
    pub(crate) fn seen(&self) -> u64 {
        seen(&self.votes, self.round.proposal)
    }

    /// Of a semaphore, the slot that most nodes have granted: of a round that is won, that which it has won.
    pub(crate) fn slot(&self) -> Option<u8> {
        leading_slot(&self.votes)
    }

    /// Of a semaphore, a slot that a majority of the nodes could have granted, where they have granted different ones. Two
    /// rounds that meet do not look at the slots in the same order.
    pub(crate) fn common_slot(&self) -> Option<u8> {
        let free = |slot: u8| {
            let has = |it: &Answer| matches!(it, Answer::Acquire(AcquireReply::Slot { free, .. }) if free.contains(slot));
            self.votes.quorum() <= self.votes.count(has)
        };
        let first = self
            .round
            .proposal
            .to_le_bytes()
            .into_iter()
            .fold(0, |it: u8, byte| it.wrapping_mul(31) ^ byte);
        (0..=u8::MAX)
            .map(|it| first.wrapping_add(it))
            .find(|it| free(*it))
    }

    /// Which of several locks is in the way, as the first node says that names one.
    pub(crate) fn in_the_way(&self) -> Which {
        self.votes.iter().find_map(Answer::which)
    }

    /// How many nodes have queued the call in their waiting lists.
    pub(crate) fn queued(&self) -> usize {
        use AcquireReply::{Held, HeldByReaders, Reserved};
        self.votes.count(|it| match it {
            Answer::Acquire(
                Held { queued, .. } | HeldByReaders { queued, .. } | Reserved { queued, .. },
            ) => *queued,
            _ => false,
        })
    }
}

/// Of a semaphore, the slot that most nodes have granted: a majority has to grant *the same*. `None` for whatever is none.
fn leading_slot(votes: &Votes) -> Option<u8> {
    let slots = || votes.iter().filter_map(Answer::slot);
    slots().max_by_key(|it| {
        (
            slots().filter(|other| other == it).count(),
            u8::MAX.saturating_sub(*it),
        )
    })
}

/// Why no majority of these nodes grants the lock.
fn why(votes: &Votes) -> LossReason {
    use AcquireReply::{Held, HeldByReaders, Reserved};
    let held = votes.count(|it| {
        matches!(
            it,
            Answer::Acquire(Held { .. } | HeldByReaders { .. } | Reserved { .. })
        )
    });
    let unusable = votes.count(|it| {
        matches!(
            it,
            Answer::Acquire(AcquireReply::WrongType { .. } | AcquireReply::BadCounter { .. })
                | Answer::Failed(NodeFailure::KeyInUse { .. })
        )
    });
    let others = votes
        .count(Answer::is_granted)
        .saturating_add(held)
        .saturating_add(unusable);
    let failed = votes.count(|_| true).saturating_sub(others);
    if votes.spare() < failed {
        LossReason::NoQuorum
    } else if votes.spare() < unusable {
        LossReason::KeyInUse
    } else if held == 0
        && votes
            .count(|it| it.slot().is_some())
            .saturating_add(votes.open())
            < votes.quorum()
    {
        LossReason::NoQuorum
    } else {
        LossReason::Held
    }
}

/// The largest counter that nodes have shown in a round that offered `number`; of a semaphore, that of the leading slot.
fn seen(votes: &Votes, number: u64) -> u64 {
    let slot = leading_slot(votes);
    let counters = votes
        .iter()
        .filter(|it| it.slot() == slot)
        .filter_map(Answer::counter);
    token::largest_seen(counters, number, votes.spare())
}

/// One raise round.
#[derive(Debug)]
pub(crate) struct RaiseRound {
    rule: Rule,
    token: u64,
    use_until: Option<Moment>,
}

impl RaiseRound {
    /// A raise to `token`. `use_until` is the acquire round's, which was counted from before *its* send.
    pub(crate) fn new(rule: Rule, token: u64, use_until: Option<Moment>) -> RaiseRound {
        RaiseRound {
            rule,
            token,
            use_until,
        }
    }
}

impl Round for RaiseRound {
    type End = AcquireEnd;

    fn decide(&self, votes: &Votes, now: Moment) -> Option<AcquireEnd> {
        let quorum = votes.quorum();
        let taken = votes.count(|it| *it == Answer::Raise(RaiseReply::Taken));
        let spoke = votes.count(|it| {
            matches!(
                it,
                Answer::Raise(RaiseReply::Taken | RaiseReply::Above { .. } | RaiseReply::Gone)
            )
        });
        let failed = votes.count(|_| true).saturating_sub(spoke);
        if self.use_until.is_none_or(|it| now.has_reached(it)) {
            Some(AcquireEnd::Lost(LossReason::TooLate))
        } else if self.rule == Rule::Exclusive && self.token <= seen(votes, self.token) {
            Some(AcquireEnd::Lost(LossReason::Overtaken))
        } else if quorum <= taken {
            Some(AcquireEnd::Won { token: self.token })
        } else if votes.spare() < failed {
            Some(AcquireEnd::Lost(LossReason::NoQuorum))
        } else if taken.saturating_add(votes.open()) < quorum {
            Some(AcquireEnd::Lost(LossReason::Overtaken))
        } else {
            None
        }
    }
}

impl Ballot<RaiseRound> {
    /// The largest counter that nodes have shown; see [`token::largest_seen`].
    pub(crate) fn seen(&self) -> u64 {
        seen(&self.votes, self.round.token)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::answer::FreeSlots;
    use crate::ids::NodeId;
    use crate::logic::ballot::Step;

    const ACCEPTED: Answer = Answer::Acquire(AcquireReply::Accepted);
    const FAILED: Answer = Answer::Failed(NodeFailure::Stalled);

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds), Duration::from_secs(seconds))
    }

    fn held(counter: u64, queued: bool) -> Answer {
        Answer::Acquire(AcquireReply::Held {
            counter,
            left: None,
            queued,
            holder: Some(Arc::from("somebody")),
            which: None,
        })
    }

    fn reserved(counter: u64, queued: bool) -> Answer {
        Answer::Acquire(AcquireReply::Reserved {
            counter,
            left: Duration::from_secs(1),
            queued,
            which: None,
        })
    }

    /// A round of three nodes that proposed 10, after these votes, and its end.
    fn round(known: u64, votes: [Answer; 3]) -> (Ballot<AcquireRound>, Option<AcquireEnd>) {
        let mut ballot = Ballot::new(
            3,
            AcquireRound::new(Rule::Exclusive, 10, Some(at(10))).after(known),
        );
        for (node, vote) in (0..).map(NodeId::new).zip(votes) {
            let step = ballot.on_vote(node, vote, at(1));
            assert_eq!(
                step == Step::Late,
                ballot.end().is_some() && !matches!(step, Step::Decided(_))
            );
        }
        let end = ballot.end();
        (ballot, end)
    }

    #[test]
    fn a2_a_token_is_larger_than_every_counter_that_was_seen_before_the_round() {
        let won = |known| round(known, [ACCEPTED, ACCEPTED, FAILED]).1.unwrap();
        assert_eq!(won(9), AcquireEnd::Won { token: 10 });
        assert_eq!(won(10), AcquireEnd::Raise { token: 11 });
        assert_eq!(won(17), AcquireEnd::Raise { token: 18 });
    }

    #[test]
    fn a_round_knows_which_nodes_have_entered_the_call_and_the_largest_counter() {
        let lost = Some(AcquireEnd::Lost(LossReason::Held));
        for (votes, queued, seen) in [
            ([ACCEPTED, held(3, true), reserved(4, true)], 2, 4),
            ([ACCEPTED, held(5, false), reserved(4, true)], 1, 5),
            ([ACCEPTED, held(3, true), reserved(4, false)], 1, 4),
        ] {
            let (ballot, end) = round(0, votes);
            assert_eq!((ballot.queued(), ballot.seen(), end), (queued, seen, lost));
        }
    }

    #[test]
    fn a_round_is_lost_for_a_reason_that_alone_explains_it() {
        let ahead = Answer::Acquire(AcquireReply::Ahead { counter: 7 });
        let bad = Answer::Acquire(AcquireReply::BadCounter { which: None });
        let wrong = [
            Answer::Acquire(AcquireReply::WrongType { which: None }),
            Answer::Failed(NodeFailure::KeyInUse {
                name: None,
                what: NodeFailure::ANOTHER_TYPE,
            }),
        ];
        for (votes, why) in [
            ([ahead.clone(), FAILED, ACCEPTED], LossReason::NoQuorum),
            ([ahead, held(1, false), ACCEPTED], LossReason::Held),
            (
                [wrong[0].clone(), wrong[1].clone(), FAILED],
                LossReason::KeyInUse,
            ),
            (
                [bad.clone(), wrong[1].clone(), held(1, false)],
                LossReason::KeyInUse,
            ),
            ([bad.clone(), held(1, false), FAILED], LossReason::Held),
            ([bad, FAILED, ACCEPTED], LossReason::NoQuorum),
        ] {
            let shown = format!("{votes:?}");
            assert_eq!(round(0, votes).1, Some(AcquireEnd::Lost(why)), "{shown}");
        }
    }

    #[test]
    fn a7_a_raise_shows_the_counters_that_have_overtaken_it() {
        let mut ballot = Ballot::new(3, RaiseRound::new(Rule::Exclusive, 20, Some(at(10))));
        let mut vote = |node, reply| ballot.on_vote(NodeId::new(node), Answer::Raise(reply), at(1));
        assert_eq!(vote(0, RaiseReply::Taken), Step::Wait);
        assert_eq!(
            vote(1, RaiseReply::Above { counter: 23 }),
            Step::Decided(AcquireEnd::Lost(LossReason::Overtaken))
        );
        assert_eq!(ballot.seen(), 23);
    }

    /// A grant of `slot`, of a semaphore, by a node that could have granted those of `free`.
    fn slot(slot: u8, counter: Option<u64>, free: impl IntoIterator<Item = u8>) -> Answer {
        let mut slots = FreeSlots::default();
        free.into_iter().for_each(|it| slots.insert(it));
        Answer::Acquire(AcquireReply::Slot {
            slot,
            counter,
            free: slots,
        })
    }

    #[test]
    fn a3_a_slot_is_won_where_a_majority_has_granted_the_same() {
        let taken = |it, counter| slot(it, counter, []);
        for (votes, leading, expected) in [
            (
                [taken(1, None), taken(2, None), taken(2, None)],
                2,
                AcquireEnd::Won { token: 10 },
            ),
            (
                [taken(1, Some(17)), taken(2, None), taken(2, None)],
                2,
                AcquireEnd::Won { token: 10 },
            ),
            (
                [taken(2, Some(17)), taken(2, None), FAILED],
                2,
                AcquireEnd::Raise { token: 18 },
            ),
            (
                [ACCEPTED, taken(2, None), taken(2, None)],
                2,
                AcquireEnd::Won { token: 10 },
            ),
            (
                [taken(3, None), taken(1, None), taken(2, None)],
                1,
                AcquireEnd::Lost(LossReason::Held),
            ),
            (
                [taken(3, None), taken(1, None), FAILED],
                1,
                AcquireEnd::Lost(LossReason::Held),
            ),
            (
                [taken(3, None), held(1, false), FAILED],
                3,
                AcquireEnd::Lost(LossReason::Held),
            ),
            (
                [taken(3, None), FAILED, FAILED],
                3,
                AcquireEnd::Lost(LossReason::NoQuorum),
            ),
        ] {
            let shown = format!("{votes:?}");
            let (ballot, end) = round(0, votes);
            assert_eq!(
                (ballot.slot(), end),
                (Some(leading), Some(expected)),
                "{shown}"
            );
        }
    }

    /// With four nodes, a round in which two have granted different slots is lost before the last answer, if one has failed.
    #[test]
    fn permits_that_rivals_split_are_held_whoever_has_not_answered_yet() {
        let taken = |it| slot(it, None, []);
        for (votes, why) in [
            ([FAILED, taken(0), taken(1)], LossReason::Held),
            ([FAILED, taken(0), FAILED], LossReason::NoQuorum),
        ] {
            let mut ballot = Ballot::new(4, AcquireRound::new(Rule::Exclusive, 10, Some(at(10))));
            let shown = format!("{votes:?}");
            for (node, vote) in (0..).map(NodeId::new).zip(votes) {
                ballot.on_vote(node, vote, at(1));
            }
            assert_eq!(ballot.end(), Some(AcquireEnd::Lost(why)), "{shown}");
        }
    }

    #[test]
    fn a_common_slot_is_one_that_a_majority_could_have_granted() {
        for (free, common) in [
            ([[0, 4], [1, 4], [2, 4]], Some(4)),
            ([[0, 4], [1, 3], [2, 4]], Some(4)),
            ([[0, 0], [1, 1], [2, 2]], None),
        ] {
            let (ballot, end) = round(0, free.map(|it| slot(it[0], None, it)));
            assert_eq!(
                (end, ballot.common_slot()),
                (Some(AcquireEnd::Lost(LossReason::Held)), common),
                "{free:?}"
            );
        }
    }

    #[test]
    fn rounds_that_meet_do_not_try_the_same_common_slot() {
        let tried = |proposal: u64| {
            let mut ballot = Ballot::new(
                3,
                AcquireRound::new(Rule::Exclusive, proposal, Some(at(10))),
            );
            for node in 0..3 {
                ballot.on_vote(NodeId::new(node), slot(node, None, 0..=u8::MAX), at(1));
            }
            ballot.common_slot().unwrap()
        };
        for late in [0, 0x6_0a5b_1234_5600, 0x6_ffff_ffff_ff00] {
            let slots: HashSet<_> = (0..=u64::from(u8::MAX))
                .map(|it| tried(late | it))
                .collect();
            assert_eq!(slots.len(), 256, "{late:x}");
        }
    }

    #[test]
    fn which_of_several_locks_is_in_the_way_is_known_and_stands_in_the_report() {
        let names: Arc<[LockName]> = [&b"a"[..], b"b"].map(LockName::new).into();
        let mut ballot = Ballot::new(
            3,
            AcquireRound::new(Rule::Exclusive, 10, Some(at(10))).of_names(&names),
        );
        let reserved = |which| {
            Answer::Acquire(AcquireReply::Reserved {
                counter: 1,
                left: Duration::ZERO,
                queued: true,
                which,
            })
        };
        assert_eq!(ballot.in_the_way(), None);
        for (node, which) in [None, Some(1), Some(0)].into_iter().enumerate() {
            ballot.on_vote(
                NodeId::new(u8::try_from(node).unwrap()),
                reserved(which),
                at(1),
            );
        }
        assert_eq!(ballot.in_the_way(), Some(1));
        let rows = [None, Some("b"), Some("a")].map(|it| NodeAnswer::Reserved {
            left: Duration::ZERO,
            name: it.map(Arc::from),
        });
        assert!(ballot.rows().map(|it| it.1).eq(rows));
    }
}
