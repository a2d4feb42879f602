//! How an attempt ended.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::engine::round::admission::RoundTicket;
use crate::engine::round::pending::Pending;
use crate::engine::spec::LockSpec;
use crate::error::{NodeAnswer, NodeFailure};
use crate::ids::{ClientId, FencingToken, NodeSet, OwnerToken};
use crate::logic::acquire_round::{AcquireRound, LossReason};
use crate::logic::pause::{self, Obstacle};
use crate::logic::quorum;
use crate::logic::tally::ReleaseRound;
use crate::time::{self, Moment, Now, Tick};

/// What a won acquisition knows.
pub(crate) struct Won {
    pub(crate) spec: Arc<LockSpec>,
    pub(crate) owner: OwnerToken,
    pub(crate) token: FencingToken,
    /// The nodes were offered another one first.
    pub(crate) raised: bool,
    /// Read before the first byte could leave.
    pub(crate) sent: Now,
    pub(crate) use_until: Moment,
    /// Nodes have handed it over, for a short life.
    pub(crate) is_handed_over: bool,
    pub(crate) first_life: Option<RoundTicket>,
    /// Nodes to which the acquire may have come.
    pub(crate) reached: NodeSet,
    pub(crate) grants: Grants,
    /// The call may be in waiting lists, of nodes that refused it.
    pub(crate) in_lists: Option<ClientId>,
    /// Nodes may hand the lock over to its owner: its call has waited.
    pub(crate) waited: bool,
}

#[cfg(test)]
impl Won {
    /// A lock that was won just now, that no node knows of, and that ends after `lasts`.
    pub(crate) fn just_now(spec: &Arc<LockSpec>, lasts: Duration) -> Won {
        let sent = Now::read();
        Won {
            spec: Arc::clone(spec),
            owner: OwnerToken::draw().unwrap(),
            token: FencingToken(1),
            raised: false,
            sent,
            use_until: sent.moment.checked_add(lasts).unwrap(),
            is_handed_over: false,
            first_life: None,
            reached: NodeSet::default(),
            grants: Grants::default(),
            in_lists: None,
            waited: false,
        }
    }
}

/// Which nodes granted a lock: also those whose answers come, or came, when it was won already.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    pub(crate) round: Option<Arc<Pending<AcquireRound>>>,
    /// The slot, of a semaphore. Others that were granted besides are given back.
    pub(crate) slot: Option<u8>,
    /// Nodes on which it turned out to be gone.
    pub(crate) gone: NodeSet,
}

impl Grants {
    /// Nodes that have answered, granted or not.
    pub(crate) fn answered(&self) -> NodeSet {
        self.round
            .as_ref()
            .map_or(NodeSet::default(), |it| it.nodes_with(|_| true))
    }

    pub(crate) fn nodes(&self) -> NodeSet {
        let granted = |it: &Answer| it.is_granted() && it.slot() == self.slot;
        self.round
            .as_ref()
            .map_or(NodeSet::default(), |it| it.nodes_with(granted))
            .without(self.gone)
    }
}

/// A lost attempt, with everything of it taken back.
#[derive(Clone)]
pub(crate) struct LostAttempt {
    pub(crate) why: LossReason,
    pub(crate) rows: Vec<NodeAnswer>,
    pub(crate) round: Option<Arc<Pending<AcquireRound>>>,
    /// When it began.
    pub(crate) asked: Tick,
    pub(crate) took: Duration,
    /// For how long the call has waited for its round ticket before.
    pub(crate) waited: Duration,
    /// The largest fencing counter that was seen.
    pub(crate) seen: u64,
    /// Of a semaphore, of which the nodes granted different slots: one that is free at a majority.
    pub(crate) common_slot: Option<u8>,
    /// How many nodes have queued the call in their waiting lists.
    pub(crate) queued: usize,
    /// It asked to enter these lists.
    pub(crate) enters: bool,
    /// A release of its owner was sent.
    pub(crate) is_released: bool,
    /// The release of what was granted, on its way.
    pub(crate) release: Option<Arc<Pending<ReleaseRound>>>,
}

impl LostAttempt {
    /// Nothing was sent: there is no fencing token that could be proposed.
    pub(crate) fn without_tokens(nodes: usize, seen: u64) -> LostAttempt {
        let rows = vec![NodeAnswer::Pending; nodes];
        let (asked, took, waited) = (time::tick(), Duration::ZERO, Duration::ZERO);
        let why = LossReason::KeyInUse;
        LostAttempt {
            why,
            rows,
            round: None,
            asked,
            took,
            waited,
            seen,
            common_slot: None,
            queued: 0,
            enters: true,
            is_released: false,
            release: None,
        }
    }

    /// Whether it may be that nobody got the lock: something was granted to us, and to others the rest.
    pub(crate) fn is_undecided(&self) -> bool {
        match self.why {
            LossReason::Overtaken => true,
            LossReason::Held => self.rows.iter().any(NodeAnswer::is_granted),
            // The next attempt knows the nodes' time.
            LossReason::NoQuorum => self
                .rows
                .contains(&NodeAnswer::Failed(NodeFailure::ClockBehind)),
            LossReason::TooLate | LossReason::KeyInUse => false,
        }
    }

    /// Whether a majority of the nodes can be asked; `None` if the attempt says nothing about it.
    pub(crate) fn finds_a_majority(&self) -> Option<bool> {
        match self.why {
            LossReason::NoQuorum => Some(self.quarantine().is_some()),
            LossReason::Held | LossReason::TooLate | LossReason::Overtaken => Some(true),
            LossReason::KeyInUse => None,
        }
    }

    /// The nodes whose quarantine stands in the way, and for how long: until enough of them vote. That is no outage; `None` if no
    /// majority will be there even then.
    pub(crate) fn quarantine(&self) -> Option<(usize, Duration)> {
        let left = |it: &NodeAnswer| match it {
            NodeAnswer::Failed(NodeFailure::Quarantined { left, .. }) => Some(*left),
            _ => None,
        };
        let lasts: Vec<_> = self.rows.iter().filter_map(left).collect();
        let longest = lasts.iter().copied().max()?;
        let failed = |it: &&NodeAnswer| matches!(it, NodeAnswer::Failed(_));
        let failed = self.rows.iter().filter(failed).count();
        let gone = failed.saturating_sub(lasts.len());
        (quorum(self.rows.len()) <= self.rows.len().saturating_sub(gone))
            .then_some((lasts.len(), longest))
    }

    /// The earliest time at which a majority of the nodes can be free if nobody releases anything.
    pub(crate) fn free_in(&self) -> Option<Duration> {
        pause::free_in(&obstacles(&self.rows))
    }
}

/// Why an attempt has won nothing.
pub(crate) enum NotWon {
    Lost(LostAttempt),
    /// Nothing was sent: the system gives no random numbers.
    NoRandomness {
        reason: String,
    },
}

impl From<LostAttempt> for NotWon {
    fn from(lost: LostAttempt) -> NotWon {
        NotWon::Lost(lost)
    }
}

/// What stands in the way at each node.
fn obstacles(answers: &[NodeAnswer]) -> Vec<Obstacle> {
    let obstacle = |it: &NodeAnswer| match it {
        NodeAnswer::Granted | NodeAnswer::GrantedBehind => Obstacle::Free,
        NodeAnswer::Held {
            left: Some(left), ..
        }
        | NodeAnswer::HeldByReaders {
            left: Some(left), ..
        }
        | NodeAnswer::Failed(NodeFailure::Quarantined { left, .. }) => Obstacle::Until(*left),
        _ => Obstacle::Unknown,
    };
    answers.iter().map(obstacle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::QuarantineReason;

    #[test]
    fn an_outage_is_one_whoever_else_is_quarantined() {
        let failed = || NodeAnswer::Failed(NodeFailure::Stalled);
        let quarantined = || {
            NodeAnswer::Failed(NodeFailure::Quarantined {
                left: Duration::from_secs(9),
                why: QuarantineReason::New,
            })
        };
        let waits = |rows| {
            LostAttempt {
                why: LossReason::NoQuorum,
                rows,
                ..LostAttempt::without_tokens(3, 0)
            }
            .finds_a_majority()
                == Some(true)
        };

        assert!(waits(vec![quarantined(), quarantined(), quarantined()]));
        assert!(waits(vec![quarantined(), failed(), NodeAnswer::Granted]));
        assert!(
            waits(vec![quarantined(), failed(), NodeAnswer::Pending]),
            "perhaps that one would have voted"
        );
        assert!(!waits(vec![quarantined(), failed(), failed()]));
        assert!(!waits(vec![failed(), failed(), NodeAnswer::Granted]));

        let quarantine = |rows| {
            LostAttempt {
                rows,
                ..LostAttempt::without_tokens(3, 0)
            }
            .quarantine()
        };
        assert_eq!(
            quarantine(vec![quarantined(), failed(), quarantined()]),
            Some((2, Duration::from_secs(9)))
        );
        assert_eq!(quarantine(vec![quarantined(), failed(), failed()]), None);
        assert_eq!(
            quarantine(vec![NodeAnswer::Granted, failed(), NodeAnswer::Granted]),
            None
        );
    }

    #[test]
    fn nodes_without_an_answer_are_not_taken_for_free() {
        let answers = [
            NodeAnswer::Held {
                left: None,
                holder: None,
                name: None,
            },
            NodeAnswer::Pending,
            NodeAnswer::Granted,
        ];
        assert_eq!(
            obstacles(&answers),
            [Obstacle::Unknown, Obstacle::Unknown, Obstacle::Free]
        );
    }
}
