//! What is done to nodes that are several servers, one step after the other.
//!
//! Each of them forgets what it has granted only if a server takes another's place that has not heard of it, and a lock is lost
//! only if most of its nodes forget it while it is held. Neither comes about by chance. So a step is done to several nodes
//! within the life of a lock: where replication is cut, there was time before it for locks that no replica has heard of; and
//! it is done to those servers that have the keys.

use crate::faults::NodeFault;

/// One fault, and to whom it is done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) fault: NodeFault,
    /// One shortly after the other; each with what else is left to chance there.
    pub(crate) nodes: Vec<(usize, fastrand::Rng)>,
    /// Replicas hear of nothing before it, for so many ttls; but for faults in which none takes a master's place.
    pub(crate) cut: Option<f64>,
    /// When each of the nodes has its turn, in ttls after the one before it.
    pub(crate) apart: f64,
    /// How long everybody is left alone afterwards, in ttls.
    pub(crate) rest: f64,
}

/// All steps of a campaign: those of one seed are always the same.
pub(crate) struct Steps {
    rng: fastrand::Rng,
    nodes: usize,
    faults: Vec<NodeFault>,
    queue: Vec<NodeFault>,
}

impl Steps {
    pub(crate) fn new(rng: fastrand::Rng, nodes: usize, faults: &[NodeFault]) -> Steps {
        Steps {
            rng,
            nodes,
            faults: faults.to_vec(),
            queue: Vec::new(),
        }
    }
}

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let rng = &mut self.rng;
        if self.queue.is_empty() {
            self.queue.clone_from(&self.faults);
            rng.shuffle(&mut self.queue);
        }
        let fault = self.queue.pop()?;
        let mut nodes: Vec<_> = (0..self.nodes).map(|it| (it, rng.fork())).collect();
        rng.shuffle(&mut nodes);
        // Mostly a bare majority.
        let majority = self.nodes / 2 + 1;
        nodes.truncate(
            [1, majority, majority, self.nodes][rng.usize(..4)].min(fault.at_once(self.nodes)),
        );
        let cut = rng.u8(..4) != 0;
        let (wait, apart) = (0.8 + rng.f64() * 0.7, rng.f64() * 0.3);
        Some(Step {
            fault,
            nodes,
            cut: (cut && fault.can_be_cut()).then_some(wait),
            apart,
            rest: rng.f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_done_to_one_node_and_to_most_of_them() {
        let steps = Steps::new(fastrand::Rng::with_seed(1), 3, &NodeFault::OF_CLUSTERS);
        let steps: Vec<_> = steps.take(100).collect();
        for fault in NodeFault::OF_CLUSTERS {
            let of = |nodes: usize| {
                steps
                    .iter()
                    .any(|it| it.fault == fault && it.nodes.len() == nodes)
            };
            assert!(of(1) && (of(2) || fault.at_once(3) == 1), "{fault:?}");
        }
    }
}
