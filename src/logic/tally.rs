//! The round of a release, and the probe of the nodes.

use std::time::Duration;

use crate::answer::Answer;
use crate::error::{NodeAnswer, NodeFailure};
use crate::ids::{NodeId, NodeSet};
use crate::logic::ballot::quorum;
use crate::logic::ballot::{Ballot, Round, Votes};
use crate::time::Moment;

/// End of a release.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ReleaseEnd {
    /// Number of nodes that confirmed the release.
    pub(crate) confirmed: usize,
    /// Whether enough nodes confirmed.
    pub(crate) enough: bool,
    /// Whether too few nodes still held the lock at the release: it was lost earlier.
    pub(crate) lost: bool,
}

/// One release round.
///
/// "Not ours" is an ordinary answer of a node without a grant, and of any node after the end of the
/// lease. From a node that confirmed the lease, before its end, it means that somebody removed the
/// key.
///
/// A resent release, on another connection, has no vote: the first one has failed. So "not ours"
/// after a delete by the first one does not count.
#[derive(Debug)]
pub(crate) struct ReleaseRound {
    needed: usize,
    /// The end of each node's promise, of a held lock.
    held: Vec<Option<Moment>>,
    /// Nodes that have lost the lock before that.
    gone: NodeSet,
}

impl ReleaseRound {
    /// A round that ends after `needed` confirmations: of the grants of a lost round.
    pub(crate) fn new(needed: usize) -> ReleaseRound {
        ReleaseRound {
            needed,
            held: Vec::new(),
            gone: NodeSet::default(),
        }
    }

    /// A round for a lock that nodes have promised until then, to be confirmed by a majority. It
    /// lasts until it is known whether a majority had the lock to the end: usually with the first
    /// answers.
    pub(crate) fn of_held(held: Vec<Option<Moment>>) -> ReleaseRound {
        ReleaseRound {
            needed: quorum(held.len()),
            held,
            gone: NodeSet::default(),
        }
    }

    /// Nodes that held the lock to the end, as far as known; a silent node counts as such.
    fn sure(&self, votes: &Votes) -> NodeSet {
        let held = (0..).map(NodeId::new).zip(&self.held);
        let promised: NodeSet = held.filter(|it| it.1.is_some()).map(|it| it.0).collect();
        let deleted = votes.nodes_with(|it| *it == Answer::Released { was_ours: true });
        promised.without(self.gone).union(deleted)
    }

    /// Whether no open answer can show a loss or refute it.
    fn is_settled(&self, votes: &Votes) -> bool {
        let quorum = votes.quorum();
        let open = votes.open_nodes();
        let sure = self.sure(votes);
        self.held.is_empty()
            || quorum <= sure.without(open).len()
            || sure.union(open).len() < quorum
    }
}

impl Round for ReleaseRound {
    type End = ReleaseEnd;

    fn note(&mut self, node: NodeId, vote: &Answer, now: Moment) {
        // RACE: T1, a node, lets the key expire at the end of its promise; T2, this release, comes
        // after that; the node answers "not ours". Therefore an answer after the end proves no
        // loss.
        let until = self.held.get(node.index()).copied().flatten();
        let is_promised = until.is_some_and(|it| !now.has_reached(it));
        if matches!(vote, Answer::Released { was_ours: false }) && is_promised {
            self.gone.insert(node);
        }
    }

    fn decide(&self, votes: &Votes, _now: Moment) -> Option<ReleaseEnd> {
        let open = votes.open();
        let confirmed = votes.count(|it| matches!(it, Answer::Released { .. }));
        let is_out_of_reach = confirmed.saturating_add(open) < self.needed;
        if open != 0 && !is_out_of_reach && (confirmed < self.needed || !self.is_settled(votes)) {
            return None;
        }
        let lost = !self.gone.is_empty() && self.sure(votes).len() < votes.quorum();
        Some(ReleaseEnd {
            confirmed,
            enough: self.needed <= confirmed,
            lost,
        })
    }
}

/// A probe of the nodes, until every node has answered.
#[derive(Debug, Default)]
pub(crate) struct ProbeRound {
    /// Time of each answer.
    came: Vec<(NodeId, Moment)>,
}

impl Round for ProbeRound {
    type End = ();

    fn note(&mut self, node: NodeId, _vote: &Answer, now: Moment) {
        self.came.push((node, now));
    }

    fn decide(&self, votes: &Votes, _now: Moment) -> Option<()> {
        (votes.open() == 0).then_some(())
    }
}

impl Ballot<ProbeRound> {
    /// Answer of `node`, or its failure.
    pub(crate) fn answer(&self, node: NodeId) -> Result<&Answer, NodeFailure> {
        let answer = self.votes.get(node).ok_or(NodeFailure::TimedOut)?;
        match (answer, NodeAnswer::from(answer)) {
            (Answer::Time | Answer::Record(_) | Answer::Inspect(_) | Answer::Listed { .. }, _) => {
                Ok(answer)
            }
            (_, NodeAnswer::Failed(failure)) => Err(failure),
            _ => Ok(answer),
        }
    }

    /// Time from `sent` to the answer of `node`, or to its failure.
    pub(crate) fn took(&self, node: NodeId, sent: Moment) -> Option<Duration> {
        let (_, came) = self.round.came.iter().find(|(it, _)| *it == node)?;
        Some(Duration::from_micros(
            came.boot_micros().saturating_sub(sent.boot_micros()),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::ballot::Step;

    fn at(millis: u64) -> Moment {
        Moment::at(Duration::from_millis(millis), Duration::from_millis(millis))
    }

    fn nodes(some: &[u8]) -> NodeSet {
        some.iter().map(|it| NodeId::new(*it)).collect()
    }

    /// The end of a release of three nodes, of which `confirmed` had confirmed the lease until 1000
    /// ms: after these votes, or none yet.
    fn released(confirmed: &[u8], votes: &[(u8, Answer, u64)]) -> Option<ReleaseEnd> {
        let promised = |node| nodes(confirmed).contains(NodeId::new(node));
        let held = (0..3).map(|node| promised(node).then(|| at(1_000)));
        let round = ReleaseRound::of_held(held.collect());
        let mut ballot = Ballot::new(3, round);
        votes.iter().find_map(|(node, vote, now)| {
            match ballot.on_vote(NodeId::new(*node), vote.clone(), at(*now)) {
                Step::Decided(end) => Some(end),
                _ => None,
            }
        })
    }

    const DELETED: Answer = Answer::Released { was_ours: true };
    const NOT_OURS: Answer = Answer::Released { was_ours: false };
    const FAILED: Answer = Answer::Failed(NodeFailure::TimedOut);

    const FREED: Option<ReleaseEnd> = Some(ReleaseEnd {
        confirmed: 2,
        enough: true,
        lost: false,
    });

    #[test]
    fn h10_a_release_that_finds_too_few_nodes_with_the_lock_is_a_loss() {
        let lost = |confirmed| {
            Some(ReleaseEnd {
                confirmed,
                enough: true,
                lost: true,
            })
        };

        assert_eq!(
            released(&[0, 1, 2], &[(0, NOT_OURS, 10), (1, NOT_OURS, 10)]),
            lost(2)
        );
        assert_eq!(
            released(&[0, 1], &[(0, NOT_OURS, 10), (1, DELETED, 10)]),
            None,
            "the third may have it, too"
        );
        assert_eq!(
            released(
                &[0, 1],
                &[(0, NOT_OURS, 10), (1, DELETED, 10), (2, NOT_OURS, 10)]
            ),
            lost(3)
        );
        assert_eq!(
            released(
                &[0, 1],
                &[(0, NOT_OURS, 10), (1, DELETED, 10), (2, FAILED, 10)]
            ),
            lost(2)
        );
        let found = Some(ReleaseEnd {
            confirmed: 3,
            enough: true,
            lost: false,
        });
        assert_eq!(
            released(
                &[0, 1],
                &[(0, NOT_OURS, 10), (1, DELETED, 10), (2, DELETED, 10)]
            ),
            found
        );
        assert_eq!(
            released(
                &[0, 1, 2],
                &[(0, NOT_OURS, 10), (1, DELETED, 10), (2, DELETED, 10)]
            ),
            found,
            "one is spare"
        );
    }

    #[test]
    fn h10_not_ours_is_no_loss_without_a_promise_or_behind_the_lease() {
        assert_eq!(
            released(&[0, 1, 2], &[(0, DELETED, 10), (1, DELETED, 10)]),
            FREED
        );
        assert_eq!(
            released(&[0, 1, 2], &[(0, NOT_OURS, 1_000), (1, NOT_OURS, 1_000)]),
            FREED
        );
        let all = Some(ReleaseEnd {
            confirmed: 3,
            enough: true,
            lost: false,
        });
        assert_eq!(
            released(
                &[0, 1],
                &[(2, NOT_OURS, 10), (0, DELETED, 10), (1, DELETED, 10)]
            ),
            all
        );
        assert_eq!(
            released(
                &[0, 1],
                &[(2, NOT_OURS, 10), (0, DELETED, 10), (1, FAILED, 10)]
            ),
            FREED,
            "nobody says it is gone"
        );
        let failed = Some(ReleaseEnd {
            confirmed: 1,
            enough: false,
            lost: false,
        });
        assert_eq!(
            released(
                &[0, 1, 2],
                &[(0, NOT_OURS, 10), (1, FAILED, 10), (2, FAILED, 10)]
            ),
            failed
        );
        let lost_round =
            Ballot::new(3, ReleaseRound::new(1)).on_vote(NodeId::new(0), NOT_OURS, at(0));
        assert_eq!(
            lost_round,
            Step::Decided(ReleaseEnd {
                confirmed: 1,
                enough: true,
                lost: false
            })
        );
    }

    #[test]
    fn a_probe_is_over_when_every_node_has_answered_and_a_node_that_has_not_is_late() {
        let mut ballot = Ballot::new(3, ProbeRound::default());
        let mut vote = |node, answer| ballot.on_vote(NodeId::new(node), answer, Moment::now());
        assert_eq!(vote(1, Answer::Failed(NodeFailure::Loading)), Step::Wait);
        assert_eq!(vote(2, Answer::NoScript), Step::Wait);
        assert_eq!(ballot.answer(NodeId::new(0)), Err(NodeFailure::TimedOut));
        assert_eq!(
            ballot.on_vote(NodeId::new(0), Answer::Time, Moment::now()),
            Step::Decided(())
        );
        assert_eq!(
            ballot.on_vote(NodeId::new(0), Answer::Time, Moment::now()),
            Step::Late
        );
        assert_eq!(
            (ballot.answer(NodeId::new(0)), ballot.answer(NodeId::new(1))),
            (Ok(&Answer::Time), Err(NodeFailure::Loading))
        );
        assert!(matches!(
            ballot.answer(NodeId::new(2)),
            Err(NodeFailure::Refused { .. })
        ));
    }

    #[test]
    fn a_probe_measures_the_time_of_each_answer() {
        let mut ballot = Ballot::new(2, ProbeRound::default());
        let sent = at(10);
        let later = Duration::from_millis(7);
        ballot.on_vote(
            NodeId::new(1),
            Answer::Time,
            sent.checked_add(later).unwrap(),
        );
        assert_eq!(
            (
                ballot.took(NodeId::new(0), sent),
                ballot.took(NodeId::new(1), sent)
            ),
            (None, Some(later))
        );
    }
}
