//! The rounds of an acquisition: the acquire round, and the raise round that follows where counters were ahead.

use crate::ids::NodeId;
use crate::logic::{Round, Step, Votes, token};
use crate::time::Moment;

/// What one node says to an acquire command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AcquireVote {
    /// Granted, and the proposal is the node's counter now.
    Accepted,
    /// Granted, but the counter is ahead. Not counted towards the majority: such a node does not order holders.
    Behind { counter: u64 },
    /// Another owner's key stands there, or it is another caller's turn. `entered`: we are in the waiting list there.
    Held { counter: u64, entered: bool },
    /// The proposal is far ahead of the node's clock, and nothing was done. Its counter all the same.
    Ahead { counter: u64 },
    /// The lock's key or counter holds something else.
    Unusable,
    /// No vote, for whatever reason.
    Failed,
}

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
    votes: Votes<AcquireVote>,
    proposal: u64,
    /// The largest counter that was seen before the round.
    known: u64,
    /// The holder's deadline if this round is won; `None` if no clock can show it, and then it cannot be won.
    use_until: Option<Moment>,
    over: bool,
}

impl AcquireRound {
    /// A round that was sent with `proposal`.
    pub(crate) fn new(nodes: usize, proposal: u64, use_until: Option<Moment>) -> AcquireRound {
        AcquireRound { votes: Votes::new(nodes), proposal, known: 0, use_until, over: false }
    }

    /// The same, after a counter of `known` was seen.
    pub(crate) fn after(self, known: u64) -> AcquireRound {
        AcquireRound { known, ..self }
    }

    /// The largest counter that nodes have shown, counted or not; see [`token::largest_seen`].
    pub(crate) fn seen(&self) -> u64 {
        let counters = self.votes.iter().filter_map(|it| match it {
            AcquireVote::Behind { counter } | AcquireVote::Held { counter, .. } | AcquireVote::Ahead { counter } => {
                Some(*counter)
            }
            AcquireVote::Accepted | AcquireVote::Unusable | AcquireVote::Failed => None,
        });
        token::largest_seen(counters, self.proposal, self.votes.spare())
    }

    /// How many nodes have entered us in their waiting lists.
    pub(crate) fn entered(&self) -> usize {
        self.votes.count(|it| matches!(it, AcquireVote::Held { entered: true, .. }))
    }

    fn end(&mut self, end: AcquireEnd) -> Step<AcquireEnd> {
        self.over = true;
        Step::Decided(end)
    }

    fn decide(&mut self, open: usize, now: Moment) -> Step<AcquireEnd> {
        let quorum = self.votes.quorum();
        let accepted = self.votes.count(|it| *it == AcquireVote::Accepted);
        let granted = self.votes.count(|it| matches!(it, AcquireVote::Accepted | AcquireVote::Behind { .. }));
        let seen = self.seen().max(self.known);
        let late = self.use_until.is_none_or(|it| now.has_reached(it));
        if late && quorum <= granted {
            return self.end(AcquireEnd::Lost(LossReason::TooLate));
        }
        if granted.saturating_add(open) < quorum {
            let why = self.why();
            return self.end(AcquireEnd::Lost(why));
        }
        if late {
            return self.end(AcquireEnd::Lost(LossReason::TooLate));
        }
        if granted < quorum {
            return Step::Wait;
        }
        // Belt and braces: a token must also be larger than counters of nodes that are not counted, because a counter
        // may have been lost elsewhere.
        if quorum <= accepted && seen < self.proposal {
            return self.end(AcquireEnd::Won { token: self.proposal });
        }
        // Not waiting for the nodes that are still open: one of them may be hung, and a raise is one round trip.
        match token::above(seen.max(self.proposal)) {
            Some(token) => self.end(AcquireEnd::Raise { token }),
            None => self.end(AcquireEnd::Lost(LossReason::KeyInUse)),
        }
    }

    fn why(&self) -> LossReason {
        let failed = self.votes.count(|it| matches!(it, AcquireVote::Failed | AcquireVote::Ahead { .. }));
        let unusable = self.votes.count(|it| *it == AcquireVote::Unusable);
        let held = self.votes.count(|it| matches!(it, AcquireVote::Held { .. }));
        if self.votes.spare() < failed {
            LossReason::NoQuorum
        } else if self.votes.spare() < unusable {
            LossReason::KeyInUse
        } else if held == 0 {
            LossReason::NoQuorum
        } else {
            LossReason::Held
        }
    }
}

impl Round for AcquireRound {
    type Vote = AcquireVote;
    type End = AcquireEnd;

    fn on_vote(&mut self, node: NodeId, vote: AcquireVote, now: Moment) -> Step<AcquireEnd> {
        if self.over || !self.votes.put(node, vote) {
            return Step::Late;
        }
        self.decide(self.votes.open(), now)
    }

    fn on_timeout(&mut self, now: Moment) -> Step<AcquireEnd> {
        if self.over {
            return Step::Late;
        }
        self.votes.fill(AcquireVote::Failed);
        self.decide(0, now)
    }
}

/// What one node says to a raise command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RaiseVote {
    /// Our key stands there and the token is the node's counter now.
    Taken,
    /// Our key stands there, but the counter is not below the token. Not counted.
    Above { counter: u64 },
    /// Our key does not stand there.
    Gone,
    /// No vote.
    Failed,
}

/// One raise round. Its majority is made of the nodes that took the token, and of no others.
#[derive(Debug)]
pub(crate) struct RaiseRound {
    votes: Votes<RaiseVote>,
    token: u64,
    use_until: Option<Moment>,
    over: bool,
}

impl RaiseRound {
    /// A raise to `token`. `use_until` is the acquire round's, which was counted from before *its* send.
    pub(crate) fn new(nodes: usize, token: u64, use_until: Option<Moment>) -> RaiseRound {
        RaiseRound { votes: Votes::new(nodes), token, use_until, over: false }
    }

    /// The largest counter that nodes have shown; see [`token::largest_seen`].
    pub(crate) fn seen(&self) -> u64 {
        let counter = |it: &RaiseVote| if let RaiseVote::Above { counter } = it { Some(*counter) } else { None };
        token::largest_seen(self.votes.iter().filter_map(counter), self.token, self.votes.spare())
    }

    fn decide(&mut self, open: usize, now: Moment) -> Step<AcquireEnd> {
        let quorum = self.votes.quorum();
        let taken = self.votes.count(|it| *it == RaiseVote::Taken);
        let failed = self.votes.count(|it| *it == RaiseVote::Failed);
        let end = if self.use_until.is_none_or(|it| now.has_reached(it)) {
            AcquireEnd::Lost(LossReason::TooLate)
        } else if self.token <= self.seen() {
            AcquireEnd::Lost(LossReason::Overtaken)
        } else if quorum <= taken {
            AcquireEnd::Won { token: self.token }
        } else if self.votes.spare() < failed {
            AcquireEnd::Lost(LossReason::NoQuorum)
        } else if taken.saturating_add(open) < quorum {
            AcquireEnd::Lost(LossReason::Overtaken)
        } else {
            return Step::Wait;
        };
        self.over = true;
        Step::Decided(end)
    }
}

impl Round for RaiseRound {
    type Vote = RaiseVote;
    type End = AcquireEnd;

    fn on_vote(&mut self, node: NodeId, vote: RaiseVote, now: Moment) -> Step<AcquireEnd> {
        if self.over || !self.votes.put(node, vote) {
            return Step::Late;
        }
        self.decide(self.votes.open(), now)
    }

    fn on_timeout(&mut self, now: Moment) -> Step<AcquireEnd> {
        if self.over {
            return Step::Late;
        }
        self.votes.fill(RaiseVote::Failed);
        self.decide(0, now)
    }
}
