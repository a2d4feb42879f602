//! The rounds of a held lock: extension and release.

use crate::error::NodeFailure;
use crate::ids::NodeId;
use crate::logic::{Round, Step, Votes};
use crate::time::Moment;

/// What one node says to an extend command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ExtendVote {
    /// Ours, with the full ttl again.
    Extended,
    /// Not there, or someone else's.
    Gone,
    /// The fencing counter is above our token: a rival was granted there, or at least tried. Does not count, and does
    /// not prove a loss either.
    Superseded,
    /// No vote.
    Failed,
}

/// How an extension ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ExtendEnd {
    /// A majority extended.
    Confirmed,
    /// So many nodes no longer hold the lock that no majority can: it is lost now, before its time.
    Gone,
    /// Neither: try again while there is time.
    NotConfirmed,
}

/// One extension round.
#[derive(Debug)]
pub(crate) struct ExtendRound {
    votes: Votes<ExtendVote>,
    over: bool,
}

impl ExtendRound {
    pub(crate) fn new(nodes: usize) -> ExtendRound {
        ExtendRound { votes: Votes::new(nodes), over: false }
    }

    fn decide(&mut self, open: usize) -> Step<ExtendEnd> {
        let quorum = self.votes.quorum();
        let extended = self.votes.count(|it| *it == ExtendVote::Extended);
        let gone = self.votes.count(|it| *it == ExtendVote::Gone);
        let end = if quorum <= extended {
            ExtendEnd::Confirmed
        } else if self.votes.spare() < gone {
            ExtendEnd::Gone
        } else if extended.saturating_add(open) < quorum && gone.saturating_add(open) <= self.votes.spare() {
            ExtendEnd::NotConfirmed
        } else {
            return Step::Wait;
        };
        self.over = true;
        Step::Decided(end)
    }
}

impl Round for ExtendRound {
    type Vote = ExtendVote;
    type End = ExtendEnd;

    fn on_vote(&mut self, node: NodeId, vote: ExtendVote, _now: Moment) -> Step<ExtendEnd> {
        if self.over || !self.votes.put(node, vote) {
            return Step::Late;
        }
        self.decide(self.votes.open())
    }

    fn on_timeout(&mut self, _now: Moment) -> Step<ExtendEnd> {
        if self.over {
            return Step::Late;
        }
        self.votes.fill(ExtendVote::Failed);
        self.decide(0)
    }
}

/// How a release ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ReleaseEnd {
    /// Nodes that confirmed that they no longer hold the lock for us.
    pub(crate) confirmed: usize,
    /// Whether those are as many as were needed.
    pub(crate) enough: bool,
}

/// One release round. A vote is whether the node confirmed.
#[derive(Debug)]
pub(crate) struct ReleaseRound {
    votes: Votes<bool>,
    needed: usize,
    over: bool,
}

impl ReleaseRound {
    /// A round that is over once `needed` nodes have confirmed: a majority for a held lock; those that had granted,
    /// for a round that was lost.
    pub(crate) fn new(nodes: usize, needed: usize) -> ReleaseRound {
        ReleaseRound { votes: Votes::new(nodes), needed, over: false }
    }

    fn decide(&mut self, open: usize) -> Step<ReleaseEnd> {
        let confirmed = self.votes.count(|it| *it);
        if confirmed < self.needed && self.needed <= confirmed.saturating_add(open) {
            return Step::Wait;
        }
        self.over = true;
        Step::Decided(ReleaseEnd { confirmed, enough: self.needed <= confirmed })
    }
}

impl Round for ReleaseRound {
    type Vote = bool;
    type End = ReleaseEnd;

    fn on_vote(&mut self, node: NodeId, vote: bool, _now: Moment) -> Step<ReleaseEnd> {
        if self.over || !self.votes.put(node, vote) {
            return Step::Late;
        }
        self.decide(self.votes.open())
    }

    fn on_timeout(&mut self, _now: Moment) -> Step<ReleaseEnd> {
        if self.over {
            return Step::Late;
        }
        self.votes.fill(false);
        self.decide(0)
    }
}

/// A round that only looks at the nodes: over once every node has answered. A vote is what is wrong with it, if anything.
#[derive(Debug)]
pub(crate) struct LookRound {
    votes: Votes<Option<NodeFailure>>,
    over: bool,
}

impl LookRound {
    pub(crate) fn new(nodes: usize) -> LookRound {
        LookRound { votes: Votes::new(nodes), over: false }
    }

    /// What is wrong with `node`.
    pub(crate) fn failure(&self, node: NodeId) -> Option<NodeFailure> {
        self.votes.get(node).map_or(Some(NodeFailure::TimedOut), Option::clone)
    }
}

impl Round for LookRound {
    type Vote = Option<NodeFailure>;
    type End = ();

    fn on_vote(&mut self, node: NodeId, vote: Option<NodeFailure>, _now: Moment) -> Step<()> {
        if self.over || !self.votes.put(node, vote) {
            return Step::Late;
        }
        if self.votes.open() != 0 {
            return Step::Wait;
        }
        self.over = true;
        Step::Decided(())
    }

    fn on_timeout(&mut self, _now: Moment) -> Step<()> {
        if self.over {
            return Step::Late;
        }
        self.over = true;
        Step::Decided(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_over_when_every_node_has_answered_and_who_has_not_is_late() {
        let mut round = LookRound::new(2);
        assert_eq!(round.on_vote(NodeId::new(1), Some(NodeFailure::Loading), Moment::now()), Step::Wait);
        assert_eq!(round.failure(NodeId::new(0)), Some(NodeFailure::TimedOut));
        assert_eq!(round.on_vote(NodeId::new(0), None, Moment::now()), Step::Decided(()));
        assert_eq!(round.on_vote(NodeId::new(0), None, Moment::now()), Step::Late);
        assert_eq!((round.failure(NodeId::new(0)), round.failure(NodeId::new(1))), (None, Some(NodeFailure::Loading)));
    }
}
