//! The rounds of a held lock: extension and release.

use crate::error::NodeFailure;
use crate::ids::{NodeId, NodeSet};
use crate::logic::{Round, Step, Votes, quorum};
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

/// What one node says to a release.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReleaseVote {
    /// It was ours, and is gone now.
    Deleted,
    /// It was not there, or someone else's.
    NotOurs,
    /// No vote.
    Failed,
}

/// How a release ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ReleaseEnd {
    /// Nodes that confirmed that they no longer hold the lock for us.
    pub(crate) confirmed: usize,
    /// Whether those are as many as were needed.
    pub(crate) enough: bool,
    /// Whether too few nodes still held it when the release came: it was lost before that.
    pub(crate) lost: bool,
}

/// What a held lock stood on when it was released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// The nodes that had confirmed it last.
    pub(crate) confirmed: NodeSet,
    /// Until then none of them can have let it expire.
    pub(crate) until: Moment,
}

/// One release round.
///
/// "Not ours" is an ordinary answer of a node that never granted the lock, and of any node once the lease is over. Of one
/// that had confirmed the lease, and before that is over, it is a key that somebody took away.
///
/// A release that is sent again, on another connection, has no vote: the first has failed by then. So nobody is counted
/// who says "not ours" because he deleted it the first time.
#[derive(Debug)]
pub(crate) struct ReleaseRound {
    votes: Votes<ReleaseVote>,
    needed: usize,
    /// For a lock that was held.
    held: Option<Held>,
    deleted: NodeSet,
    /// Nodes that had confirmed the lease and do not have it any more, before its time.
    gone: NodeSet,
    over: bool,
}

impl ReleaseRound {
    /// A round that is over once `needed` nodes have confirmed: those that had granted, for a round that was lost.
    pub(crate) fn new(nodes: usize, needed: usize) -> ReleaseRound {
        let (deleted, gone) = (NodeSet::default(), NodeSet::default());
        ReleaseRound { votes: Votes::new(nodes), needed, held: None, deleted, gone, over: false }
    }

    /// A round for a lock that is held, which a majority has to confirm. It goes on until it is known whether a majority
    /// had the lock to the end: with the first answers, as a rule.
    pub(crate) fn of_held(nodes: usize, held: Held) -> ReleaseRound {
        ReleaseRound { held: Some(held), ..ReleaseRound::new(nodes, quorum(nodes)) }
    }

    /// Nodes that held the lock to the end for all that is known; those that say nothing are taken to have.
    fn sure(&self) -> NodeSet {
        let confirmed = self.held.map_or(NodeSet::default(), |it| it.confirmed);
        confirmed.without(self.gone).union(self.deleted)
    }

    /// Whether nothing that nodes may still say makes a loss of this, or takes one back.
    fn is_settled(&self) -> bool {
        let quorum = self.votes.quorum();
        let open = self.votes.open_nodes();
        self.held.is_none() || quorum <= self.sure().without(open).len() || self.sure().union(open).len() < quorum
    }

    fn decide(&mut self) -> Step<ReleaseEnd> {
        let open = self.votes.open();
        let confirmed = self.votes.count(|it| *it != ReleaseVote::Failed);
        let is_out_of_reach = confirmed.saturating_add(open) < self.needed;
        if open != 0 && !is_out_of_reach && (confirmed < self.needed || !self.is_settled()) {
            return Step::Wait;
        }
        self.over = true;
        let lost = self.gone != NodeSet::default() && self.sure().len() < self.votes.quorum();
        Step::Decided(ReleaseEnd { confirmed, enough: self.needed <= confirmed, lost })
    }
}

impl Round for ReleaseRound {
    type Vote = ReleaseVote;
    type End = ReleaseEnd;

    fn on_vote(&mut self, node: NodeId, vote: ReleaseVote, now: Moment) -> Step<ReleaseEnd> {
        if self.over || !self.votes.put(node, vote) {
            return Step::Late;
        }
        match vote {
            ReleaseVote::Deleted => self.deleted.insert(node),
            // RACE: an answer that comes after the end of the lease may be that of a key that has expired.
            ReleaseVote::NotOurs => {
                let proves = |it: Held| it.confirmed.contains(node) && !now.has_reached(it.until);
                if self.held.is_some_and(proves) {
                    self.gone.insert(node);
                }
            }
            ReleaseVote::Failed => {}
        }
        self.decide()
    }

    fn on_timeout(&mut self, _now: Moment) -> Step<ReleaseEnd> {
        if self.over {
            return Step::Late;
        }
        self.votes.fill(ReleaseVote::Failed);
        self.decide()
    }
}

/// A round that only looks at the nodes: over once every node has answered. A vote is what is wrong with it, if anything.
#[derive(Debug)]
pub(crate) struct ProbeRound {
    votes: Votes<Option<NodeFailure>>,
    over: bool,
}

impl ProbeRound {
    pub(crate) fn new(nodes: usize) -> ProbeRound {
        ProbeRound { votes: Votes::new(nodes), over: false }
    }

    /// What is wrong with `node`.
    pub(crate) fn failure(&self, node: NodeId) -> Option<NodeFailure> {
        self.votes.get(node).map_or(Some(NodeFailure::TimedOut), Option::clone)
    }
}

impl Round for ProbeRound {
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
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::at(Duration::from_millis(millis), Duration::from_millis(millis))
    }

    fn nodes(some: &[u8]) -> NodeSet {
        some.iter().map(|it| NodeId::new(*it)).collect()
    }

    /// The end of a release of three nodes, of which `confirmed` had confirmed the lease until 1000 ms: after these votes, or
    /// none yet.
    fn released(confirmed: &[u8], votes: &[(u8, ReleaseVote, u64)]) -> Option<ReleaseEnd> {
        let mut round = ReleaseRound::of_held(3, Held { confirmed: nodes(confirmed), until: at(1_000) });
        votes.iter().find_map(|(node, vote, now)| match round.on_vote(NodeId::new(*node), *vote, at(*now)) {
            Step::Decided(end) => Some(end),
            _ => None,
        })
    }

    const FREED: Option<ReleaseEnd> = Some(ReleaseEnd { confirmed: 2, enough: true, lost: false });

    #[test]
    fn h10_a_release_that_finds_too_few_nodes_with_the_lock_is_a_loss() {
        use ReleaseVote::{Deleted, Failed, NotOurs};
        let lost = |confirmed| Some(ReleaseEnd { confirmed, enough: true, lost: true });

        assert_eq!(released(&[0, 1, 2], &[(0, NotOurs, 10), (1, NotOurs, 10)]), lost(2));
        assert_eq!(released(&[0, 1], &[(0, NotOurs, 10), (1, Deleted, 10)]), None, "the third may have it, too");
        assert_eq!(released(&[0, 1], &[(0, NotOurs, 10), (1, Deleted, 10), (2, NotOurs, 10)]), lost(3));
        assert_eq!(released(&[0, 1], &[(0, NotOurs, 10), (1, Deleted, 10), (2, Failed, 10)]), lost(2));
        let found = Some(ReleaseEnd { confirmed: 3, enough: true, lost: false });
        assert_eq!(released(&[0, 1], &[(0, NotOurs, 10), (1, Deleted, 10), (2, Deleted, 10)]), found);
        assert_eq!(
            released(&[0, 1, 2], &[(0, NotOurs, 10), (1, Deleted, 10), (2, Deleted, 10)]),
            found,
            "one is spare"
        );
    }

    #[test]
    fn h10_not_ours_is_no_loss_of_who_never_had_it_nor_when_the_lease_is_over() {
        use ReleaseVote::{Deleted, Failed, NotOurs};

        assert_eq!(released(&[0, 1, 2], &[(0, Deleted, 10), (1, Deleted, 10)]), FREED);
        assert_eq!(released(&[0, 1, 2], &[(0, NotOurs, 1_000), (1, NotOurs, 1_000)]), FREED);
        let all = Some(ReleaseEnd { confirmed: 3, enough: true, lost: false });
        assert_eq!(released(&[0, 1], &[(2, NotOurs, 10), (0, Deleted, 10), (1, Deleted, 10)]), all);
        assert_eq!(
            released(&[0, 1], &[(2, NotOurs, 10), (0, Deleted, 10), (1, Failed, 10)]),
            FREED,
            "nobody says it is gone"
        );
        let failed = Some(ReleaseEnd { confirmed: 1, enough: false, lost: false });
        assert_eq!(released(&[0, 1, 2], &[(0, NotOurs, 10), (1, Failed, 10), (2, Failed, 10)]), failed);
        let lost_round = ReleaseRound::new(3, 1).on_vote(NodeId::new(0), NotOurs, at(0));
        assert_eq!(lost_round, Step::Decided(ReleaseEnd { confirmed: 1, enough: true, lost: false }));
    }

    #[test]
    fn a_look_is_over_when_every_node_has_answered_and_who_has_not_is_late() {
        let mut round = ProbeRound::new(2);
        assert_eq!(round.on_vote(NodeId::new(1), Some(NodeFailure::Loading), Moment::now()), Step::Wait);
        assert_eq!(round.failure(NodeId::new(0)), Some(NodeFailure::TimedOut));
        assert_eq!(round.on_vote(NodeId::new(0), None, Moment::now()), Step::Decided(()));
        assert_eq!(round.on_vote(NodeId::new(0), None, Moment::now()), Step::Late);
        assert_eq!((round.failure(NodeId::new(0)), round.failure(NodeId::new(1))), (None, Some(NodeFailure::Loading)));
    }
}
