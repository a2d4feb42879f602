//! Decisions, and nothing else: facts in, steps out.
//!
//! No I/O, no clock, no thread, no log. `now` is an argument everywhere, read once per step by the caller.

pub(crate) mod acquire;
pub(crate) mod admission;
pub(crate) mod clock;
pub(crate) mod confirmations;
pub(crate) mod contact;
pub(crate) mod eligibility;
pub(crate) mod lease;
pub(crate) mod longest;
pub(crate) mod outage;
pub(crate) mod pace;
pub(crate) mod run_ids;
pub(crate) mod sets;
pub(crate) mod tally;
pub(crate) mod token;
pub(crate) mod validity;
pub(crate) mod wait;

use crate::ids::{NodeId, NodeSet};
use crate::time::Moment;

/// How many nodes make a majority of `nodes` *configured* ones; never count connected ones instead.
pub(crate) fn quorum(nodes: usize) -> usize {
    (nodes / 2).saturating_add(1)
}

/// What a vote leads to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step<D> {
    /// Nothing is decided yet.
    Wait,
    /// The round is over, now.
    Decided(D),
    /// The round was over before this vote, or this node had voted already. Nothing to do: whoever ended the round
    /// has taken care of what a late vote can leave on its node.
    Late,
}

/// A round: one vote from each node, one decision.
pub(crate) trait Round {
    /// What a node can say.
    type Vote;
    /// How the round can end.
    type End;

    /// Counts one vote.
    fn on_vote(&mut self, node: NodeId, vote: Self::Vote, now: Moment) -> Step<Self::End>;

    /// Ends an open round: who has not voted by now has failed.
    fn on_timeout(&mut self, now: Moment) -> Step<Self::End>;
}

/// One place per node for its vote.
#[derive(Clone, Debug)]
pub(crate) struct Votes<V> {
    votes: Vec<Option<V>>,
}

impl<V> Votes<V> {
    pub(crate) fn new(nodes: usize) -> Votes<V> {
        Votes { votes: (0..nodes).map(|_| None).collect() }
    }

    /// Takes the vote of `node`; false if it has voted already (each node counts once) or is none of ours.
    pub(crate) fn put(&mut self, node: NodeId, vote: V) -> bool {
        match self.votes.get_mut(node.index()) {
            Some(place @ None) => {
                *place = Some(vote);
                true
            }
            _ => false,
        }
    }

    /// The vote of `node`, if it has voted.
    pub(crate) fn get(&self, node: NodeId) -> Option<&V> {
        self.votes.get(node.index())?.as_ref()
    }

    /// Gives `vote` to every node that has none.
    pub(crate) fn fill(&mut self, vote: V)
    where
        V: Copy,
    {
        for place in &mut self.votes {
            place.get_or_insert(vote);
        }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.votes.len()
    }

    pub(crate) fn quorum(&self) -> usize {
        quorum(self.nodes())
    }

    /// How many nodes may fail with a majority still within reach.
    pub(crate) fn spare(&self) -> usize {
        self.nodes().saturating_sub(self.quorum())
    }

    /// The nodes that have not voted.
    pub(crate) fn open_nodes(&self) -> NodeSet {
        let votes = self.votes.iter().zip((0..).map(NodeId::new));
        votes.filter(|(vote, _)| vote.is_none()).map(|(_, node)| node).collect()
    }

    /// How many have not voted.
    pub(crate) fn open(&self) -> usize {
        self.votes.iter().filter(|it| it.is_none()).count()
    }

    pub(crate) fn count(&self, what: impl Fn(&V) -> bool) -> usize {
        self.iter().filter(|it| what(it)).count()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &V> {
        self.votes.iter().flatten()
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

    #[test]
    fn a3_a_node_votes_once() {
        let mut votes = Votes::new(2);
        assert!(votes.put(NodeId::new(0), 'a'));
        assert!(!votes.put(NodeId::new(0), 'b'));
        assert!(!votes.put(NodeId::new(7), 'b'));
        assert_eq!(votes.iter().collect::<String>(), "a");
    }
}
