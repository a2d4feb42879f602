//! One round: every node has a vote, and the votes decide once.

use crate::answer::Answer;
use crate::error::{NodeAnswer, NodeFailure};
use crate::ids::{NodeId, NodeSet};
use crate::time::Moment;

/// Number of nodes in a majority of `nodes` *configured* ones; never count connected ones instead.
pub(crate) fn quorum(nodes: usize) -> usize {
    (nodes / 2).saturating_add(1)
}

/// Decision of a kind of round; a [`Ballot`] does the rest.
pub(crate) trait Round: Send + 'static {
    /// Result of the round.
    type End: Copy + std::fmt::Debug + Send;

    /// Notes a vote, if its time matters.
    fn note(&mut self, _node: NodeId, _vote: &Answer, _now: Moment) {}

    /// Row of an answer in reports.
    fn row(&self, answer: &Answer) -> NodeAnswer {
        NodeAnswer::from(answer)
    }

    /// The end, if the votes decide it. Without an open node they must.
    fn decide(&self, votes: &Votes, now: Moment) -> Option<Self::End>;
}

/// Effect of a vote.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step<D> {
    /// Nothing is decided yet.
    Wait,
    /// The round is over, now.
    Decided(D),
    /// The round was over, or the node had voted. Nothing is left to do: the thread that ended the
    /// round handles the effects of late votes on nodes.
    Late,
}

/// A round under way.
#[derive(Clone, Debug)]
pub(crate) struct Ballot<R: Round> {
    pub(super) round: R,
    pub(super) votes: Votes,
    end: Option<R::End>,
}

impl<R: Round> Ballot<R> {
    pub(crate) fn new(nodes: usize, round: R) -> Ballot<R> {
        Ballot {
            round,
            votes: Votes::new(nodes),
            end: None,
        }
    }

    /// Counts one vote.
    pub(crate) fn on_vote(&mut self, node: NodeId, vote: Answer, now: Moment) -> Step<R::End> {
        if self.end.is_some() {
            self.on_late_vote(node, vote);
            return Step::Late;
        }
        let Some(vote) = self.votes.put(node, vote) else {
            return Step::Late;
        };
        self.round.note(node, vote, now);
        self.decide(now)
    }

    /// Takes a vote after the end.
    pub(crate) fn on_late_vote(&mut self, node: NodeId, vote: Answer) {
        self.votes.put_late(node, vote);
    }

    /// Ends an open round: nodes without a vote have failed.
    pub(crate) fn on_timeout(&mut self, now: Moment) -> Step<R::End> {
        if self.end.is_some() {
            return Step::Late;
        }
        self.votes.close();
        self.decide(now)
    }

    fn decide(&mut self, now: Moment) -> Step<R::End> {
        self.end = self.round.decide(&self.votes, now);
        self.end.map_or(Step::Wait, Step::Decided)
    }

    /// The decision, if any.
    pub(crate) fn end(&self) -> Option<R::End> {
        self.end
    }

    pub(crate) fn votes(&self) -> &Votes {
        &self.votes
    }

    /// Rows of all nodes in reports.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (NodeId, NodeAnswer)> {
        let row =
            |answer: Option<&Answer>| answer.map_or(NodeAnswer::Pending, |it| self.round.row(it));
        self.votes.places().map(move |(node, it)| (node, row(it)))
    }
}

/// Answers of the nodes, one place each.
#[derive(Clone, Debug)]
pub(crate) struct Votes {
    answers: Vec<Option<Answer>>,
    /// Nodes with a late answer. Reports show it; it does not count.
    late: NodeSet,
}

impl Votes {
    fn new(nodes: usize) -> Votes {
        Votes {
            answers: vec![None; nodes],
            late: NodeSet::default(),
        }
    }

    /// Takes the vote of `node`; `None` for a second vote, because each node counts once, or for a
    /// node outside the round.
    fn put(&mut self, node: NodeId, vote: Answer) -> Option<&Answer> {
        match self.answers.get_mut(node.index()) {
            Some(place @ None) => Some(place.insert(vote)),
            _ => None,
        }
    }

    fn put_late(&mut self, node: NodeId, vote: Answer) {
        let place = self.answers.get_mut(node.index());
        if let Some(place) = place.filter(|it| it.is_none()) {
            *place = Some(vote);
            self.late.insert(node);
        }
    }

    /// Lets nodes without a vote fail.
    fn close(&mut self) {
        for place in &mut self.answers {
            place.get_or_insert(Answer::Failed(NodeFailure::TimedOut));
        }
    }

    /// Answer of `node`, late ones included.
    pub(crate) fn get(&self, node: NodeId) -> Option<&Answer> {
        self.answers.get(node.index())?.as_ref()
    }

    /// Nodes with such an answer, late ones included.
    pub(crate) fn nodes_with(&self, what: impl Fn(&Answer) -> bool) -> NodeSet {
        self.places()
            .filter(|(_, it)| it.is_some_and(&what))
            .map(|(node, _)| node)
            .collect()
    }

    /// Nodes without an answer.
    pub(crate) fn open_nodes(&self) -> NodeSet {
        self.places()
            .filter(|(_, it)| it.is_none())
            .map(|(node, _)| node)
            .collect()
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = (NodeId, Option<&Answer>)> {
        (0..)
            .map(NodeId::new)
            .zip(self.answers.iter().map(Option::as_ref))
    }

    /// Number of nodes without an answer.
    pub(crate) fn open(&self) -> usize {
        self.open_nodes().len()
    }

    /// Votes in time.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Answer> {
        self.places()
            .filter_map(|(node, it)| it.filter(|_| !self.late.contains(node)))
    }

    pub(super) fn count(&self, what: impl Fn(&Answer) -> bool) -> usize {
        self.iter().filter(|it| what(it)).count()
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }

    pub(super) fn quorum(&self) -> usize {
        quorum(self.answers.len())
    }

    /// Number of nodes that may fail without preventing a majority.
    pub(super) fn spare(&self) -> usize {
        self.answers.len().saturating_sub(self.quorum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3_a_quorum_is_more_than_half_of_the_configured_nodes() {
        let quorums: Vec<_> = (1..=7).map(quorum).collect();
        assert_eq!(quorums, [1, 2, 2, 3, 3, 4, 4]);
    }

    /// All sets of servers out of seven, as bits.
    fn lists() -> std::ops::Range<u32> {
        1..1 << 7
    }

    /// Whether a program of each list can hold the same lock, if these servers are dead.
    fn can_both_hold(one: u32, other: u32, dead: u32) -> bool {
        let count = |set: u32| usize::try_from(set.count_ones()).unwrap();
        let majorities = |list: u32| {
            lists().filter(move |votes| {
                votes & !(list & !dead) == 0 && quorum(count(list)) <= count(*votes)
            })
        };
        majorities(one).any(|votes| majorities(other).any(|others| votes & others == 0))
    }

    #[test]
    fn h26_majorities_of_lists_that_differ_by_one_server_overlap() {
        for list in lists() {
            for server in (0..7).map(|number| 1 << number) {
                assert!(
                    !can_both_hold(list, list ^ server, 0),
                    "{list:b} {server:b}"
                );
                for dead in (0..7)
                    .map(|number| 1 << number)
                    .filter(|dead| list & dead != 0)
                {
                    let replaced = list & !dead | server;
                    assert!(
                        !can_both_hold(list, replaced, dead),
                        "{list:b} {replaced:b}"
                    );
                }
            }
        }
        assert!(can_both_hold(0b111, 0b1011, 0), "ABC beside ABD");
        assert!(can_both_hold(0b111, 0b11111, 0), "two at once");
    }

    /// Decided by as many votes as this, and counts what was reported to it.
    struct First(usize);

    impl Round for First {
        type End = usize;

        fn decide(&self, votes: &Votes, _now: Moment) -> Option<usize> {
            let open = votes.open();
            let voted = votes.count(|_| true);
            (open == 0 || self.0 <= voted).then_some(voted)
        }
    }

    fn vote(ballot: &mut Ballot<First>, node: u8, answer: Answer) -> Step<usize> {
        ballot.on_vote(NodeId::new(node), answer, Moment::now())
    }

    #[test]
    fn a3_a_node_votes_once() {
        let mut ballot = Ballot::new(3, First(2));
        assert_eq!(vote(&mut ballot, 0, Answer::Time), Step::Wait);
        assert_eq!(vote(&mut ballot, 0, Answer::NoScript), Step::Late);
        assert_eq!(vote(&mut ballot, 7, Answer::Time), Step::Late);
        assert_eq!(ballot.votes().get(NodeId::new(0)), Some(&Answer::Time));
        assert_eq!((ballot.votes().open(), ballot.end()), (2, None));
    }

    #[test]
    fn an_answer_that_comes_after_the_end_is_shown_and_does_not_count() {
        let mut ballot = Ballot::new(3, First(2));
        assert_eq!(vote(&mut ballot, 0, Answer::Time), Step::Wait);
        assert_eq!(vote(&mut ballot, 1, Answer::Time), Step::Decided(2));
        assert_eq!(vote(&mut ballot, 2, Answer::NoScript), Step::Late);
        assert_eq!(ballot.on_timeout(Moment::now()), Step::Late);

        assert_eq!((ballot.votes().count(|_| true), ballot.end()), (2, Some(2)));
        assert_eq!(ballot.votes().open(), 0);
        assert_eq!(ballot.votes().get(NodeId::new(2)), Some(&Answer::NoScript));
        assert!(
            ballot
                .votes()
                .nodes_with(|it| *it == Answer::NoScript)
                .contains(NodeId::new(2))
        );
    }

    #[test]
    fn a_node_that_has_not_voted_in_time_has_failed() {
        let mut ballot = Ballot::new(2, First(3));
        assert_eq!(vote(&mut ballot, 1, Answer::Time), Step::Wait);
        assert_eq!(ballot.on_timeout(Moment::now()), Step::Decided(2));
        assert_eq!(
            ballot.votes().get(NodeId::new(0)),
            Some(&Answer::Failed(NodeFailure::TimedOut))
        );
        assert_eq!(ballot.votes().get(NodeId::new(1)), Some(&Answer::Time));
        assert_eq!(vote(&mut ballot, 0, Answer::Time), Step::Late);
    }

    #[test]
    fn a_report_has_a_row_for_each_node() {
        let mut ballot = Ballot::new(3, First(1));
        let released = Answer::Released { was_ours: true };
        assert_eq!(vote(&mut ballot, 2, released.clone()), Step::Decided(1));
        assert_eq!(vote(&mut ballot, 0, released), Step::Late);
        let rows = [
            NodeAnswer::Released,
            NodeAnswer::Pending,
            NodeAnswer::Released,
        ];
        assert!(ballot.rows().eq((0..).map(NodeId::new).zip(rows)));
    }
}
