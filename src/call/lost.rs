//! A lost round of a call: what it shows about the nodes.

use std::time::Duration;

use crate::error::{NodeAnswer, NodeFailure, RoundLoss};
use crate::ids::{NodeId, NodeSet};
use crate::logic::{pause, quorum};
use crate::time::Tick;

/// A lost round.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) why: RoundLoss,
    pub(crate) rows: Vec<NodeAnswer>,
    pub(crate) began: Tick,
    pub(crate) took: Duration,
}

impl Lost {
    fn nodes_with(&self, answers: impl Fn(&NodeAnswer) -> bool) -> NodeSet {
        let rows = (0..).map(NodeId::new).zip(&self.rows);
        rows.filter(|it| answers(it.1)).map(|it| it.0).collect()
    }

    /// Nodes with a grant, also with one that does not count.
    pub(super) fn grants(&self) -> NodeSet {
        self.nodes_with(|it| match it {
            NodeAnswer::Failed(failure) => matches!(failure, NodeFailure::Quarantined { .. }),
            answer => answer.is_granted(),
        })
    }

    pub(super) fn refusals(&self) -> NodeSet {
        self.nodes_with(|it| {
            matches!(
                it,
                NodeAnswer::Held { .. } | NodeAnswer::HeldByReaders { .. }
            )
        })
    }

    pub(super) fn unanswered(&self) -> NodeSet {
        self.nodes_with(|it| matches!(it, NodeAnswer::Pending | NodeAnswer::Failed(_)))
    }

    /// Whether possibly no call got the lock: some nodes granted it to this call, the others to
    /// other calls.
    pub(super) fn is_undecided(&self) -> bool {
        match self.why {
            RoundLoss::Overtaken => true,
            RoundLoss::Held => self.rows.iter().any(NodeAnswer::is_granted),
            // The next round has the nodes' time.
            RoundLoss::NoQuorum => {
                let behind = NodeAnswer::Failed(NodeFailure::ClockBehind);
                self.rows.contains(&behind)
            }
            RoundLoss::TooLate | RoundLoss::KeyInUse => false,
        }
    }

    /// Whether a majority of the nodes is reachable; `None` if the round shows nothing about that.
    pub(crate) fn finds_a_majority(&self) -> Option<bool> {
        match self.why {
            RoundLoss::NoQuorum => Some(self.quarantine().is_some()),
            RoundLoss::Held | RoundLoss::TooLate | RoundLoss::Overtaken => Some(true),
            RoundLoss::KeyInUse => None,
        }
    }

    /// Without a quorum because of quarantined nodes: the time until all of them vote. That is no
    /// outage. `None` if there is no majority even then.
    pub(crate) fn quarantine(&self) -> Option<Duration> {
        if self.why != RoundLoss::NoQuorum {
            return None;
        }
        let left = |row: &NodeAnswer| match row {
            NodeAnswer::Failed(NodeFailure::Quarantined { left, .. }) => Some(*left),
            _ => None,
        };
        let times_left: Vec<_> = self.rows.iter().filter_map(left).collect();
        let longest = times_left.iter().copied().max()?;
        let failed = |it: &&NodeAnswer| matches!(it, NodeAnswer::Failed(_));
        let failed = self.rows.iter().filter(failed).count();
        let gone = failed.saturating_sub(times_left.len());
        (quorum(self.rows.len()) <= self.rows.len().saturating_sub(gone)).then_some(longest)
    }

    /// Earliest time at which a majority can be free without a release.
    pub(super) fn free_in(&self) -> Option<Duration> {
        let free_in = |row: &NodeAnswer| match row {
            // This grant is being taken back.
            NodeAnswer::Granted | NodeAnswer::GrantedBehind => Some(Duration::ZERO),
            // The key expires then, unless its owner extends it.
            NodeAnswer::Held { left, .. } | NodeAnswer::HeldByReaders { left, .. } => *left,
            NodeAnswer::Failed(NodeFailure::Quarantined { left, .. }) => Some(*left),
            _ => None,
        };
        let nodes: Vec<_> = self.rows.iter().map(free_in).collect();
        pause::free_in(&nodes)
    }
}
