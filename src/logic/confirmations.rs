//! Nodes that confirmed a held lock, and whether a majority of them still has it after clock steps.
//!
//! A node's key expires by that node's wall clock. After a step forward the key expires early, and the node may grant
//! the lock to another client while the holder counts on it. A majority without that node keeps the lock. Otherwise the
//! lock is in doubt and needs a new confirmation.
//!
//! A node restarted without its data is another case: it is quarantined until our lease is over.

use crate::ids::NodeSet;
use crate::logic::ballot::quorum;
use crate::time::Tick;

/// Nodes that confirmed a lease until its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirmations {
    /// Number of all nodes.
    nodes: usize,
    pub(crate) confirmed: NodeSet,
    /// Send of the confirmed round.
    pub(crate) since: Tick,
}

/// An extension without a majority.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failed {
    pub(crate) extended: NodeSet,
    pub(crate) gone: NodeSet,
    /// Nodes with a clock step forward after the send of the extension.
    pub(crate) stepped: NodeSet,
}

impl Confirmations {
    /// Confirmations of a round sent at `since`.
    pub(crate) fn new(nodes: usize, confirmed: NodeSet, since: Tick) -> Confirmations {
        Confirmations {
            nodes,
            confirmed,
            since,
        }
    }

    /// Adds further confirmations of that round.
    pub(crate) fn and(self, others: NodeSet) -> Confirmations {
        Confirmations {
            confirmed: self.confirmed.union(others),
            ..self
        }
    }

    /// Whether no majority is left without `stepped`: nodes with a later clock step forward.
    pub(crate) fn is_suspect(&self, stepped: NodeSet) -> bool {
        !self.confirmed.both(stepped).is_empty()
            && self.confirmed.without(stepped).len() < quorum(self.nodes)
    }

    /// Whether too few nodes hold the lock after a failed extension. After a clock step during that extension the
    /// answer is unknown: it has to be sent again.
    pub(crate) fn are_lost(&self, stepped: NodeSet, failed: Failed) -> bool {
        let sure = self
            .confirmed
            .without(stepped)
            .union(failed.extended)
            .without(failed.gone);
        let asked = self.confirmed.union(failed.extended);
        self.is_suspect(stepped)
            && sure.without(failed.stepped).len() < quorum(self.nodes)
            && asked.both(failed.stepped).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    fn set(nodes: &[u8]) -> NodeSet {
        nodes.iter().map(|it| NodeId::new(*it)).collect()
    }

    fn confirmations(nodes: usize, confirmed: &[u8]) -> Confirmations {
        Confirmations::new(nodes, set(confirmed), crate::time::tick())
    }

    fn failed(extended: &[u8], gone: &[u8]) -> Failed {
        Failed {
            extended: set(extended),
            gone: set(gone),
            stepped: set(&[]),
        }
    }

    #[test]
    fn c4_a_lock_is_in_doubt_if_no_majority_is_left_without_the_nodes_that_stepped() {
        assert!(!confirmations(3, &[0, 1]).is_suspect(set(&[])));
        assert!(
            !confirmations(3, &[0, 1]).is_suspect(set(&[2])),
            "it is not counted"
        );
        assert!(confirmations(3, &[0, 1]).is_suspect(set(&[1])));
        assert!(
            !confirmations(3, &[0, 1, 2]).is_suspect(set(&[1])),
            "two are enough"
        );
        assert!(confirmations(3, &[0, 1, 2]).is_suspect(set(&[1, 2])));
        assert!(confirmations(1, &[0]).is_suspect(set(&[0])));
    }

    #[test]
    fn c4_a_node_that_confirms_after_the_decision_counts_as_the_others_do() {
        let before = confirmations(3, &[0, 1]);
        let lock = before.and(set(&[2]));
        assert_eq!(
            (lock.confirmed, lock.since),
            (set(&[0, 1, 2]), before.since)
        );
        assert!(before.is_suspect(set(&[0])) && !lock.is_suspect(set(&[0])));
    }

    #[test]
    fn c4_a_doubt_is_founded_if_too_few_have_confirmed_and_none_else_is_sure() {
        let lock = confirmations(3, &[0, 1]);
        assert!(lock.are_lost(set(&[0]), failed(&[], &[])));
        assert!(lock.are_lost(set(&[0]), failed(&[1], &[0])));
        assert!(
            !lock.are_lost(set(&[0]), failed(&[0], &[])),
            "its key is there, and 1 is sure"
        );
        assert!(!lock.are_lost(set(&[0]), failed(&[2], &[])));
        assert!(
            lock.are_lost(set(&[0]), failed(&[2], &[1])),
            "node 1 turned out to have lost it"
        );
    }

    #[test]
    fn d2_without_a_step_an_extension_that_fails_founds_no_doubt() {
        let lock = confirmations(3, &[0, 1]);
        for stepped in [set(&[]), set(&[2])] {
            assert!(!lock.are_lost(stepped, failed(&[], &[0])));
        }
    }

    #[test]
    fn c4_what_a_node_confirmed_before_its_clock_was_set_is_asked_once_more() {
        let lock = confirmations(3, &[0, 1]);
        let late = Failed {
            stepped: set(&[0]),
            ..failed(&[0], &[])
        };
        assert!(!lock.are_lost(set(&[0]), late));
        assert!(lock.are_lost(set(&[0]), failed(&[], &[])));
        let other = Failed {
            stepped: set(&[2]),
            ..failed(&[0], &[])
        };
        assert!(
            !lock.are_lost(set(&[0, 2]), other),
            "the third is not counted"
        );
    }

    /// All confirmations, steps and answers of up to five nodes: a lock is kept only if so many nodes have it for sure.
    #[test]
    fn c4_no_lock_is_kept_that_too_few_nodes_are_sure_to_hold() {
        for nodes in [1_u8, 2, 3, 4, 5] {
            let all = 1_u32 << nodes;
            let from_bits = |bits: u32| {
                set(&(0..nodes)
                    .filter(|it| bits & (1 << it) != 0)
                    .collect::<Vec<_>>())
            };
            let quorum = quorum(usize::from(nodes));
            for confirmed in (0..all).map(from_bits).filter(|it| quorum <= it.len()) {
                let lock = Confirmations::new(usize::from(nodes), confirmed, crate::time::tick());
                for stepped in (0..all).map(from_bits) {
                    for (extended, gone) in (0..all)
                        .flat_map(|a| (0..all).map(move |b| (a, b)))
                        .filter(|(a, b)| a & b == 0)
                    {
                        let extended = from_bits(extended);
                        let gone = from_bits(gone);
                        let kept = !lock.are_lost(
                            stepped,
                            Failed {
                                extended,
                                gone,
                                stepped: set(&[]),
                            },
                        );
                        let holds = |it: &u8| {
                            let node = NodeId::new(*it);
                            let untouched = confirmed.contains(node)
                                && !stepped.contains(node)
                                && !gone.contains(node);
                            untouched || extended.contains(node)
                        };
                        let sure = (0..nodes).filter(holds).count();
                        let touched = (0..nodes).any(|it| {
                            confirmed.contains(NodeId::new(it)) && stepped.contains(NodeId::new(it))
                        });
                        assert!(
                            !kept || quorum <= sure || !touched || !lock.is_suspect(stepped),
                            "{lock:?} {stepped:?}"
                        );
                        assert!(
                            kept || sure < quorum,
                            "lost without need: {lock:?} {stepped:?} {extended:?} {gone:?}"
                        );
                    }
                }
            }
        }
    }
}
