//! The rounds of an acquisition: the acquire round, and the raise round after it if counters were
//! ahead.

use std::sync::Arc;

use crate::answer::{Answer, LockReply, LockStatus, Which};
use crate::error::{NodeAnswer, NodeFailure, RoundLoss};
use crate::ids::{LockName, NodeId};
use crate::logic::ballot::{Ballot, Round, Votes};
use crate::logic::rw_counts;
use crate::logic::token;
use crate::time::Moment;

/// How an acquisition round ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AcquireEnd {
    /// Held, with this fencing token.
    Won { token: u64 },
    /// A majority granted, but did not accept the proposal: raise to this token. Not held yet.
    Raise { token: u64 },
    /// Not held. All grants must be taken back.
    Lost(RoundLoss),
}

/// Number of holders.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Rule {
    /// One at a time, with a token of its own.
    Exclusive,
    /// Any number of readers, with the number of the last writer: see
    /// [`rw_counts`](crate::logic::rw_counts).
    Shared,
}

impl Rule {
    fn grants(self, vote: &Answer) -> bool {
        match self {
            Rule::Exclusive => vote.is_granted(),
            Rule::Shared => vote.is(LockStatus::Shared),
        }
    }

    /// Whether the vote counts for the majority that wins with `token`.
    pub(crate) fn counts(self, vote: &Answer, token: u64) -> bool {
        vote.is(LockStatus::Raised)
            || match self {
                Rule::Exclusive => vote.is_accepted(),
                Rule::Shared => self.grants(vote) && vote.counter() == Some(token),
            }
    }
}

/// One acquire round.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRound {
    rule: Rule,
    proposal: u64,
    /// Largest counter seen before the round.
    pub(crate) known: u64,
    /// Deadline of the holder if the round is won. `None`: no clock can show it, and the round
    /// cannot be won.
    use_until: Option<Moment>,
    /// Several names of the lock, in the order of its commands.
    pub(crate) names: Arc<[LockName]>,
}

impl AcquireRound {
    /// A round with this `proposal`.
    pub(crate) fn new(rule: Rule, proposal: u64, use_until: Option<Moment>) -> AcquireRound {
        AcquireRound {
            rule,
            proposal,
            known: 0,
            use_until,
            names: Arc::default(),
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
        let granted = votes.count(|it| self.rule.grants(it) && it.slot() == slot);
        if granted.saturating_add(votes.open()) < quorum {
            return why(self.rule, votes).map(AcquireEnd::Lost);
        }
        if self.use_until.is_none_or(|it| now.has_reached(it)) {
            return Some(AcquireEnd::Lost(RoundLoss::TooLate));
        }
        if granted < quorum {
            return None;
        }
        if self.rule == Rule::Shared {
            return Some(match rw_counts::last_writer(votes, self.proposal) {
                Ok(token) => AcquireEnd::Won { token },
                Err(token) => AcquireEnd::Raise { token },
            });
        }
        // A node that granted with its counter ahead does not order holders and does not count. To
        // be safe, a token must also exceed the counters of nodes that do not count, because a
        // counter may have been lost elsewhere.
        let accepted = votes.count(|it| it.is_accepted() && it.slot() == slot);
        let seen = seen(votes, self.proposal).max(self.known);
        if quorum <= accepted && seen < self.proposal {
            return Some(AcquireEnd::Won {
                token: self.proposal,
            });
        }
        // No wait for open nodes: one of them may hang, and a raise is one round trip.
        Some(match token::above(seen.max(self.proposal)) {
            Some(token) => AcquireEnd::Raise { token },
            None => AcquireEnd::Lost(RoundLoss::KeyInUse),
        })
    }
}

impl Ballot<AcquireRound> {
    /// Largest counter shown by any node; see [`token::largest_seen`].
    pub(crate) fn seen(&self) -> u64 {
        seen(&self.votes, self.round.proposal)
    }

    pub(crate) fn proposal(&self) -> u64 {
        self.round.proposal
    }

    /// Whether a hand-over of `node` with this token counts: the node's answer was a refusal with a
    /// lower counter. So the key was set after that answer, and outlives a lease counted from
    /// before the round.
    pub(crate) fn may_follow(&self, node: NodeId, token: u64) -> bool {
        let refused = self.votes.get(node).filter(|it| it.is_held());
        // Readers have no token of their own.
        let least = token.saturating_add(u64::from(self.round.rule == Rule::Shared));
        refused
            .and_then(Answer::counter)
            .is_some_and(|it| it < least)
    }

    /// The round won by hand-overs since this one was lost, if any. `tokens`: of the nodes whose
    /// hand-over [counts](Ballot::may_follow).
    pub(crate) fn of_hand_overs(
        &self,
        tokens: &[(NodeId, u64)],
        use_until: Option<Moment>,
        now: Moment,
    ) -> Option<Ballot<AcquireRound>> {
        let with = |token: u64| tokens.iter().filter(move |it| it.1 == token);
        let token = tokens
            .iter()
            .map(|it| it.1)
            .max_by_key(|it| with(*it).count())?;
        // It must exceed all other counters, late ones included.
        let handed = |node: NodeId| with(token).any(|it| it.0 == node);
        let others = self.votes.places().filter(|it| !handed(it.0));
        // An accepted proposal is the node's counter.
        let shown = |vote: &Answer| {
            if vote.is_accepted() {
                Some(self.round.proposal)
            } else {
                vote.counter()
            }
        };
        let counters = others.filter_map(|it| shown(it.1?));
        let without = tokens.iter().map(|it| it.1).filter(|it| *it != token);
        let round = AcquireRound {
            rule: self.round.rule,
            proposal: token,
            known: counters.chain(without).fold(self.round.known, u64::max),
            use_until,
            names: Arc::clone(&self.round.names),
        };
        let mut ballot = Ballot::new(self.votes.len(), round);
        for (node, _) in with(token) {
            if let Some(vote) = ballot.vote_with(Some(token)) {
                ballot.on_vote(*node, vote, now);
            }
        }
        matches!(ballot.end(), Some(AcquireEnd::Won { .. })).then_some(ballot)
    }

    /// The vote of a hand-over with this token, if it is the token of the round.
    pub(crate) fn vote_with(&self, token: Option<u64>) -> Option<Answer> {
        let counter = token.filter(|it| *it == self.round.proposal)?;
        let status = match self.round.rule {
            Rule::Exclusive => LockStatus::Accepted,
            Rule::Shared => LockStatus::Shared,
        };
        Some(Answer::Lock(LockReply::new(status, counter)))
    }

    /// The slot of a semaphore with the most grants: of a won round, the won slot.
    pub(crate) fn slot(&self) -> Option<u8> {
        leading_slot(&self.votes)
    }

    /// The conflicting one of several locks, from the first node that names one.
    pub(crate) fn in_the_way(&self) -> Which {
        self.votes.iter().find_map(Answer::which)
    }

    /// Number of nodes with the call in their waiting lists.
    pub(crate) fn queued(&self) -> usize {
        self.votes.count(Answer::is_queued)
    }
}

/// The slot with the most grants: a majority has to grant *the same*. `None` without a semaphore.
fn leading_slot(votes: &Votes) -> Option<u8> {
    let slots = || votes.iter().filter_map(Answer::slot);
    slots().max_by_key(|slot| {
        (
            slots().filter(|other| other == slot).count(),
            u8::MAX.saturating_sub(*slot),
        )
    })
}

/// Reason of a round without a majority. `None` while open nodes decide whether a majority votes: a
/// refusal by a minority may come from a call that loses its round as well.
fn why(rule: Rule, votes: &Votes) -> Option<RoundLoss> {
    let voted = votes.count(|it| rule.grants(it) || it.is_held());
    let unusable = votes.count(|vote| {
        vote.is(LockStatus::WrongType)
            || vote.is(LockStatus::BadCounter)
            || matches!(vote, Answer::Failed(NodeFailure::KeyInUse { .. }))
    });
    let without = votes.count(|_| true).saturating_sub(voted);
    if votes.spare() < unusable {
        Some(RoundLoss::KeyInUse)
    } else if votes.spare() < without {
        Some(RoundLoss::NoQuorum)
    } else {
        (votes.quorum() <= voted).then_some(RoundLoss::Held)
    }
}

/// Largest counter shown in a round with the proposal `number`; for a semaphore, of the leading
/// slot.
fn seen(votes: &Votes, number: u64) -> u64 {
    let slot = leading_slot(votes);
    let counters = votes
        .iter()
        .filter(|it| it.slot() == slot)
        .filter_map(Answer::counter);
    token::largest_seen(counters, number, votes.spare())
}

/// One raise round.
#[derive(Clone, Debug)]
pub(crate) struct RaiseRound {
    rule: Rule,
    token: u64,
    use_until: Option<Moment>,
}

impl RaiseRound {
    /// A raise to `token`. `use_until`: the acquire round's, counted from before *its* send.
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
        let taken = votes.count(|it| it.is(LockStatus::Raised));
        let spoke = votes.count(|vote| {
            matches!(
                vote.status(),
                Some(LockStatus::Raised | LockStatus::NotRaised | LockStatus::NotOurs)
            )
        });
        let failed = votes.count(|_| true).saturating_sub(spoke);
        if self.use_until.is_none_or(|it| now.has_reached(it)) {
            Some(AcquireEnd::Lost(RoundLoss::TooLate))
        } else if self.rule == Rule::Exclusive && self.token <= seen(votes, self.token) {
            Some(AcquireEnd::Lost(RoundLoss::Overtaken))
        } else if quorum <= taken {
            Some(AcquireEnd::Won { token: self.token })
        } else if votes.spare() < failed {
            Some(AcquireEnd::Lost(RoundLoss::NoQuorum))
        } else if taken.saturating_add(votes.open()) < quorum {
            Some(AcquireEnd::Lost(RoundLoss::Overtaken))
        } else {
            None
        }
    }
}

impl Ballot<RaiseRound> {
    /// Largest counter shown by any node; see [`token::largest_seen`].
    pub(crate) fn seen(&self) -> u64 {
        seen(&self.votes, self.round.token)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::ids::NodeId;
    use crate::logic::ballot::Step;

    const ACCEPTED: Answer = Answer::of(LockStatus::Accepted);
    const FAILED: Answer = Answer::Failed(NodeFailure::Stalled);

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds), Duration::from_secs(seconds))
    }

    fn held(counter: u64, queued: bool) -> Answer {
        Answer::Lock(LockReply {
            queued,
            holder: Some(Arc::from("somebody")),
            ..LockReply::new(LockStatus::Held, counter)
        })
    }

    fn by_readers(counter: u64, queued: bool) -> Answer {
        Answer::Lock(LockReply {
            queued,
            ..LockReply::new(LockStatus::HeldByReaders, counter)
        })
    }

    /// A round of three nodes that proposed 10, after these votes, and its end.
    fn round(known: u64, votes: [Answer; 3]) -> (Ballot<AcquireRound>, Option<AcquireEnd>) {
        let mut ballot = Ballot::new(
            3,
            AcquireRound {
                known,
                ..AcquireRound::new(Rule::Exclusive, 10, Some(at(10)))
            },
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
    fn a2_a_token_is_larger_than_every_counter_of_earlier_rounds() {
        let won = |known| round(known, [ACCEPTED, ACCEPTED, FAILED]).1.unwrap();
        assert_eq!(won(9), AcquireEnd::Won { token: 10 });
        assert_eq!(won(10), AcquireEnd::Raise { token: 11 });
        assert_eq!(won(17), AcquireEnd::Raise { token: 18 });
    }

    #[test]
    fn a_round_counts_queued_votes_and_the_largest_counter() {
        let lost = Some(AcquireEnd::Lost(RoundLoss::Held));
        for (votes, queued, seen) in [
            ([ACCEPTED, held(3, true), by_readers(4, true)], 2, 4),
            ([ACCEPTED, held(5, false), by_readers(4, true)], 1, 5),
            ([ACCEPTED, held(3, true), by_readers(4, false)], 1, 4),
        ] {
            let (ballot, end) = round(0, votes);
            assert_eq!((ballot.queued(), ballot.seen(), end), (queued, seen, lost));
        }
    }

    #[test]
    fn a_round_is_lost_for_a_sufficient_reason() {
        let ahead = Answer::with_counter(LockStatus::ProposalTooFarAhead, 7);
        let bad = Answer::of(LockStatus::BadCounter);
        let wrong = [
            Answer::of(LockStatus::WrongType),
            Answer::Failed(NodeFailure::KeyInUse {
                name: None,
                what: NodeFailure::ANOTHER_TYPE,
            }),
        ];
        for (votes, why) in [
            ([ahead.clone(), FAILED, ACCEPTED], RoundLoss::NoQuorum),
            ([ahead, held(1, false), ACCEPTED], RoundLoss::Held),
            (
                [wrong[0].clone(), wrong[1].clone(), FAILED],
                RoundLoss::KeyInUse,
            ),
            (
                [bad.clone(), wrong[1].clone(), held(1, false)],
                RoundLoss::KeyInUse,
            ),
            ([bad.clone(), held(1, false), FAILED], RoundLoss::NoQuorum),
            ([bad, FAILED, ACCEPTED], RoundLoss::NoQuorum),
        ] {
            let shown = format!("{votes:?}");
            assert_eq!(round(0, votes).1, Some(AcquireEnd::Lost(why)), "{shown}");
        }
    }

    #[test]
    fn a7_a_raise_shows_the_counters_that_have_overtaken_it() {
        let mut ballot = Ballot::new(3, RaiseRound::new(Rule::Exclusive, 20, Some(at(10))));
        let mut vote = |node, answer| ballot.on_vote(NodeId::new(node), answer, at(1));
        assert_eq!(vote(0, Answer::of(LockStatus::Raised)), Step::Wait);
        assert_eq!(
            vote(1, Answer::with_counter(LockStatus::NotRaised, 23)),
            Step::Decided(AcquireEnd::Lost(RoundLoss::Overtaken))
        );
        assert_eq!(ballot.seen(), 23);
    }

    /// A grant of `slot`, of a semaphore.
    fn slot(slot: u8, counter: Option<u64>) -> Answer {
        Answer::of_slot(slot, counter)
    }

    #[test]
    fn a3_a_slot_is_won_where_a_majority_has_granted_the_same() {
        for (votes, leading, expected) in [
            (
                [slot(1, None), slot(2, None), slot(2, None)],
                2,
                AcquireEnd::Won { token: 10 },
            ),
            (
                [slot(1, Some(17)), slot(2, None), slot(2, None)],
                2,
                AcquireEnd::Won { token: 10 },
            ),
            (
                [slot(2, Some(17)), slot(2, None), FAILED],
                2,
                AcquireEnd::Raise { token: 18 },
            ),
            (
                [ACCEPTED, slot(2, None), slot(2, None)],
                2,
                AcquireEnd::Won { token: 10 },
            ),
            (
                [slot(3, None), slot(1, None), slot(2, None)],
                1,
                AcquireEnd::Lost(RoundLoss::Held),
            ),
            (
                [slot(3, None), slot(1, None), FAILED],
                1,
                AcquireEnd::Lost(RoundLoss::Held),
            ),
            (
                [slot(3, None), held(1, false), FAILED],
                3,
                AcquireEnd::Lost(RoundLoss::Held),
            ),
            (
                [slot(3, None), FAILED, FAILED],
                3,
                AcquireEnd::Lost(RoundLoss::NoQuorum),
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

    /// The end of a round of so many nodes after these votes, and after its time-out.
    fn ends(nodes: usize, votes: &[Answer]) -> (Option<RoundLoss>, Option<RoundLoss>) {
        let mut ballot = Ballot::new(nodes, AcquireRound::new(Rule::Exclusive, 10, Some(at(10))));
        for (node, vote) in (0..).map(NodeId::new).zip(votes) {
            ballot.on_vote(node, vote.clone(), at(1));
        }
        let why = |end| match end {
            Some(AcquireEnd::Lost(why)) => Some(why),
            _ => None,
        };
        let before = why(ballot.end());
        ballot.on_timeout(at(2));
        (before, why(ballot.end()))
    }

    #[test]
    fn held_needs_a_majority_and_missing_answers_are_no_quorum() {
        let (held, taken) = (|| held(1, false), |it| slot(it, None));
        let bad = || Answer::of(LockStatus::BadCounter);
        let known = |why| (Some(why), Some(why));
        let open = (None, Some(RoundLoss::NoQuorum));
        for (nodes, votes, end) in [
            (3, vec![held(), held()], known(RoundLoss::Held)),
            (3, vec![held(), ACCEPTED, FAILED], known(RoundLoss::Held)),
            (3, vec![FAILED, held()], open),
            (3, vec![bad(), held()], open),
            (3, vec![FAILED, held(), FAILED], known(RoundLoss::NoQuorum)),
            (2, vec![held()], open),
            (4, vec![held(), held()], open),
            (4, vec![FAILED, taken(0), taken(1)], open),
            (
                4,
                vec![FAILED, taken(0), taken(1), held()],
                known(RoundLoss::Held),
            ),
            (
                4,
                vec![FAILED, taken(0), FAILED],
                known(RoundLoss::NoQuorum),
            ),
            (5, vec![held(), held(), held()], known(RoundLoss::Held)),
            (
                5,
                vec![FAILED, held(), held()],
                (None, Some(RoundLoss::NoQuorum)),
            ),
            (
                5,
                vec![FAILED, held(), held(), held()],
                known(RoundLoss::Held),
            ),
            (5, vec![FAILED, bad(), held(), held()], open),
            (
                5,
                vec![FAILED, bad(), held(), bad()],
                known(RoundLoss::NoQuorum),
            ),
        ] {
            assert_eq!(ends(nodes, &votes), end, "{nodes}: {votes:?}");
        }
    }

    #[test]
    fn a_report_has_the_refused_one_of_several_names() {
        let names: Arc<[LockName]> = [&b"a"[..], b"b"].map(LockName::new).into();
        let mut ballot = Ballot::new(
            3,
            AcquireRound {
                names: Arc::clone(&names),
                ..AcquireRound::new(Rule::Exclusive, 10, Some(at(10)))
            },
        );
        let held = |which| {
            Answer::Lock(LockReply {
                which,
                ..LockReply::new(LockStatus::HeldByReaders, 1)
            })
        };
        assert_eq!(ballot.in_the_way(), None);
        for (node, which) in [None, Some(1), Some(0)].into_iter().enumerate() {
            ballot.on_vote(NodeId::new(u8::try_from(node).unwrap()), held(which), at(1));
        }
        assert_eq!(ballot.in_the_way(), Some(1));
        let rows = [None, Some("b"), Some("a")].map(|it| NodeAnswer::HeldByReaders {
            left: None,
            name: it.map(Arc::from),
        });
        assert!(ballot.rows().map(|it| it.1).eq(rows));
    }

    fn node(number: u8) -> NodeId {
        NodeId::new(number)
    }

    /// A lost round of five nodes with this rule, which had seen a counter of 3 before, after these
    /// answers.
    fn lost(rule: Rule, answers: impl IntoIterator<Item = Answer>) -> Ballot<AcquireRound> {
        let round = AcquireRound {
            known: 3,
            ..AcquireRound::new(rule, 10, Some(at(10)))
        };
        let mut ballot = Ballot::new(5, round);
        for (node, answer) in (0..).map(NodeId::new).zip(answers) {
            ballot.on_vote(node, answer, at(1));
        }
        ballot
    }

    #[test]
    fn a7_a_hand_over_is_a_vote_behind_a_refusal_with_a_lower_counter_and_no_other() {
        let ballot = lost(
            Rule::Exclusive,
            [held(20, true), by_readers(20, true), ACCEPTED, FAILED],
        );
        for (number, token, is_vote) in [
            (0, 21, true),
            (0, 20, false),
            (0, 19, false),
            (1, 21, true),
            (1, 20, false),
            (2, u64::MAX, false),
            (3, u64::MAX, false),
            // Not answered, and no node at all.
            (4, u64::MAX, false),
            (5, u64::MAX, false),
        ] {
            let found = ballot.may_follow(node(number), token);
            assert_eq!(found, is_vote, "node {number} with token {token}");
        }
    }

    #[test]
    fn a_hand_over_to_a_reader_may_show_the_counter_that_it_was_refused_with() {
        let ballot = lost(Rule::Shared, [held(20, true)]);
        let found = [19, 20, 21, u64::MAX].map(|it| ballot.may_follow(node(0), it));
        assert_eq!(found, [false, true, true, true]);
    }

    /// Its counter was lost and set again in between, or the answer was older than the hand-over.
    #[test]
    fn a7_an_answer_behind_the_end_of_the_round_has_the_counter_that_counts() {
        let mut ballot = lost(
            Rule::Exclusive,
            [held(1, true), held(1, true), held(1, true)],
        );
        assert!(ballot.end().is_some() && !ballot.may_follow(node(4), 30));
        assert_eq!(ballot.on_vote(node(4), held(30, true), at(1)), Step::Late);
        assert!(!ballot.may_follow(node(4), 30) && ballot.may_follow(node(4), 31));
    }

    /// How a round of these answers is decided by these hand-overs.
    fn handed(
        rule: Rule,
        answers: &[Answer],
        tokens: &[(u8, u64)],
    ) -> Option<Ballot<AcquireRound>> {
        let tokens: Vec<_> = tokens.iter().map(|it| (node(it.0), it.1)).collect();
        lost(rule, answers.iter().cloned()).of_hand_overs(&tokens, Some(at(10)), at(9))
    }

    #[test]
    fn a3_hand_overs_win_by_a_majority_with_one_token() {
        let refused = vec![held(5, true); 5];
        for (tokens, wins) in [
            (&[(0, 20), (2, 20), (4, 20)][..], true),
            (&[(0, 20), (1, 20), (2, 20), (3, 20), (4, 20)], true),
            (&[(0, 20), (1, 20)], false),
            // Tokens of several releases are never added up.
            (&[(0, 20), (1, 20), (2, 21)], false),
            (&[(0, 20), (1, 21), (2, 22), (3, 23), (4, 24)], false),
            (&[(0, 19), (1, 20), (2, 20), (3, 20), (4, 19)], true),
            // A node votes once.
            (&[(0, 20), (0, 20), (0, 20)], false),
            (&[], false),
        ] {
            let ballot = handed(Rule::Exclusive, &refused, tokens);
            let end = ballot.and_then(|it| it.end());
            let won = wins.then_some(AcquireEnd::Won { token: 20 });
            assert_eq!(end, won, "{tokens:?}");
        }
    }

    #[test]
    fn a2_hand_overs_win_with_a_token_above_every_counter_that_was_shown() {
        let majority = [(0, 20), (1, 20), (2, 20)];
        let wins = |fourth: Answer, more: Option<(u8, u64)>| {
            let answers = [held(5, true), held(5, true), held(5, true), fourth];
            let tokens: Vec<_> = majority.into_iter().chain(more).collect();
            handed(Rule::Exclusive, &answers, &tokens).is_some()
        };
        let behind = |counter| Answer::with_counter(LockStatus::ProposalBehind, counter);
        assert!(wins(held(19, true), None) && wins(FAILED, None) && wins(ACCEPTED, None));
        assert!(!wins(held(20, true), None), "equal to a counter");
        assert!(!wins(behind(20), None) && !wins(by_readers(21, true), None));
        // That of a hand-over is a counter as well.
        assert!(wins(held(5, true), Some((3, 19))) && !wins(held(5, true), Some((3, 21))));
        // A node that has granted it has our proposal, and would take no lower token.
        let granted = [held(5, true), held(5, true), held(5, true), ACCEPTED];
        for (token, wins) in [(9, false), (10, false), (11, true)] {
            let tokens = [(0, token), (1, token), (2, token)];
            let ballot = handed(Rule::Exclusive, &granted, &tokens);
            assert_eq!(ballot.is_some(), wins, "{token}");
        }
        // What the nodes that hand it over had before does not matter: it was lower.
        assert!(handed(Rule::Exclusive, &vec![held(19, true); 5], &majority).is_some());

        let seen_before = |known| {
            let round = AcquireRound {
                known,
                ..AcquireRound::new(Rule::Exclusive, 10, Some(at(10)))
            };
            let tokens = majority.map(|it| (node(it.0), it.1));
            let ballot = Ballot::new(5, round).of_hand_overs(&tokens, Some(at(10)), at(9));
            ballot.is_some()
        };
        assert_eq!([19, 20, 21].map(seen_before), [true, false, false]);
    }

    #[test]
    fn a13_hand_overs_win_nothing_when_their_life_is_over() {
        let ballot = lost(Rule::Exclusive, vec![held(5, true); 5]);
        let tokens = [(node(0), 20), (node(1), 20), (node(2), 20)];
        let wins = |use_until, now| ballot.of_hand_overs(&tokens, use_until, now).is_some();
        assert!(wins(Some(at(10)), at(9)));
        assert!(!wins(Some(at(10)), at(10)) && !wins(None, at(9)));
    }

    #[test]
    fn readers_win_by_hand_overs_with_the_number_that_a_majority_shows() {
        let refused = [held(5, true), held(7, true), held(5, true), held(9, true)];
        let won = |tokens: &[(u8, u64)]| handed(Rule::Shared, &refused, tokens)?.end();
        let seven = Some(AcquireEnd::Won { token: 7 });
        assert_eq!(won(&[(0, 7), (1, 7), (2, 7)]), seven);
        // A larger one elsewhere is that of a writer whom they do not follow.
        assert_eq!(won(&[(0, 7), (1, 7), (2, 7), (3, 9)]), seven);
        assert_eq!(won(&[(0, 7), (1, 7), (2, 8)]), None);
    }

    #[test]
    fn a_late_hand_over_confirms_a_round_only_with_its_token() {
        for (rule, vote) in [
            (Rule::Exclusive, ACCEPTED),
            (Rule::Shared, Answer::with_counter(LockStatus::Shared, 20)),
        ] {
            let tokens = [(0, 20), (1, 20), (2, 20)];
            let ballot = handed(rule, &vec![held(5, true); 5], &tokens).unwrap();
            assert_eq!(ballot.vote_with(Some(20)), Some(vote));
            let others = [None, Some(19), Some(21)].map(|it| ballot.vote_with(it));
            assert_eq!(others, [None, None, None]);
        }
    }
}
