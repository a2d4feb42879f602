//! The rounds of an acquisition: the acquire round, and the raise round that follows where counters were ahead.

use crate::answer::{AcquireReply, Answer, RaiseReply};
use crate::error::NodeFailure;
use crate::logic::ballot::{Ballot, Round, Votes};
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
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LossReason {
    /// Someone else holds the lock, or several contenders split the nodes between them.
    Held,
    /// Failures alone keep the majority out of reach.
    NoQuorum,
    /// The answers came when nothing usable of the ttl was left.
    TooLate,
    /// Too many nodes hold something that is not a lock.
    KeyInUse,
    /// Another contender moved the fencing counters during the raise. The lock is free or about to be: try again.
    Overtaken,
}

/// One acquire round.
#[derive(Debug)]
pub(crate) struct AcquireRound {
    proposal: u64,
    /// The largest counter that was seen before the round.
    known: u64,
    /// The holder's deadline if this round is won; `None` if no clock can show it, and then it cannot be won.
    use_until: Option<Moment>,
}

impl AcquireRound {
    /// A round that was sent with `proposal`.
    pub(crate) fn new(proposal: u64, use_until: Option<Moment>) -> AcquireRound {
        AcquireRound { proposal, known: 0, use_until }
    }

    /// The same, after a counter of `known` was seen.
    pub(crate) fn after(self, known: u64) -> AcquireRound {
        AcquireRound { known, ..self }
    }
}

impl Round for AcquireRound {
    type End = AcquireEnd;

    fn decide(&self, votes: &Votes, now: Moment) -> Option<AcquireEnd> {
        let quorum = votes.quorum();
        let granted = votes.count(Answer::is_granted);
        if granted.saturating_add(votes.open()) < quorum {
            return Some(AcquireEnd::Lost(why(votes)));
        }
        if self.use_until.is_none_or(|it| now.has_reached(it)) {
            return Some(AcquireEnd::Lost(LossReason::TooLate));
        }
        if granted < quorum {
            return None;
        }
        // A node that granted with its counter ahead does not order holders: it is not counted. And to be on the safe
        // side, a token must also be larger than the counters of nodes that are not counted, because a counter may have
        // been lost elsewhere.
        let accepted = votes.count(|it| *it == Answer::Acquire(AcquireReply::Accepted));
        let seen = seen(votes, self.proposal).max(self.known);
        if quorum <= accepted && seen < self.proposal {
            return Some(AcquireEnd::Won { token: self.proposal });
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

    /// How many nodes have entered the call in their waiting lists.
    pub(crate) fn entered(&self) -> usize {
        use AcquireReply::{Held, Reserved};
        let entered =
            |it: &Answer| matches!(it, Answer::Acquire(Held { entered: true, .. } | Reserved { entered: true, .. }));
        self.votes.count(entered)
    }
}

/// Why no majority of these nodes grants the lock.
fn why(votes: &Votes) -> LossReason {
    let held =
        votes.count(|it| matches!(it, Answer::Acquire(AcquireReply::Held { .. } | AcquireReply::Reserved { .. })));
    let unusable = votes.count(|it| {
        matches!(
            it,
            Answer::Acquire(AcquireReply::WrongType | AcquireReply::BadCounter)
                | Answer::Failed(NodeFailure::WrongType)
        )
    });
    let others = votes.count(Answer::is_granted).saturating_add(held).saturating_add(unusable);
    let failed = votes.count(|_| true).saturating_sub(others);
    if votes.spare() < failed {
        LossReason::NoQuorum
    } else if votes.spare() < unusable {
        LossReason::KeyInUse
    } else if held == 0 {
        LossReason::NoQuorum
    } else {
        LossReason::Held
    }
}

/// The largest counter that nodes have shown in a round that offered `number`.
fn seen(votes: &Votes, number: u64) -> u64 {
    token::largest_seen(votes.iter().filter_map(Answer::counter), number, votes.spare())
}

/// One raise round.
#[derive(Debug)]
pub(crate) struct RaiseRound {
    token: u64,
    use_until: Option<Moment>,
}

impl RaiseRound {
    /// A raise to `token`. `use_until` is the acquire round's, which was counted from before *its* send.
    pub(crate) fn new(token: u64, use_until: Option<Moment>) -> RaiseRound {
        RaiseRound { token, use_until }
    }
}

impl Round for RaiseRound {
    type End = AcquireEnd;

    fn decide(&self, votes: &Votes, now: Moment) -> Option<AcquireEnd> {
        let quorum = votes.quorum();
        let taken = votes.count(|it| *it == Answer::Raise(RaiseReply::Taken));
        let spoke = votes
            .count(|it| matches!(it, Answer::Raise(RaiseReply::Taken | RaiseReply::Above { .. } | RaiseReply::Gone)));
        let failed = votes.count(|_| true).saturating_sub(spoke);
        if self.use_until.is_none_or(|it| now.has_reached(it)) {
            Some(AcquireEnd::Lost(LossReason::TooLate))
        } else if self.token <= seen(votes, self.token) {
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
