//! Which nodes have answered a manager. Until a majority has answered, the manager does not know what time it is for all.

use crate::ids::{NodeId, NodeSet};
use crate::logic::quorum::quorum;

/// Which nodes have answered for the first time.
#[derive(Debug)]
pub(crate) struct Contact {
    nodes: usize,
    answered: NodeSet,
    /// The first attempt to reach these has failed.
    failed: NodeSet,
}

impl Contact {
    pub(crate) fn new(nodes: usize) -> Contact {
        Contact {
            nodes,
            answered: NodeSet::default(),
            failed: NodeSet::default(),
        }
    }

    /// `node` is connected, and has said what it is.
    pub(crate) fn on_answered(&mut self, node: NodeId) {
        self.answered.insert(node);
    }

    /// `node` could not be connected.
    pub(crate) fn on_failed(&mut self, node: NodeId) {
        self.failed.insert(node);
    }

    /// The nodes that have answered at least once.
    pub(crate) fn answered(&self) -> NodeSet {
        self.answered
    }

    pub(crate) fn has_majority(&self) -> bool {
        quorum(self.nodes) <= self.answered.len()
    }

    /// Whether waiting is of no use: a majority has answered, or cannot answer now.
    pub(crate) fn is_over(&self) -> bool {
        let failed = self.failed.without(self.answered).len();
        self.has_majority() || self.nodes.saturating_sub(failed) < quorum(self.nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_contact_is_over_with_a_majority_or_when_none_can_be_reached() {
        let mut contact = Contact::new(3);
        assert!(!contact.is_over());
        contact.on_answered(NodeId::new(0));
        contact.on_failed(NodeId::new(1));
        assert!(!contact.is_over(), "the last may come");
        contact.on_failed(NodeId::new(0));
        assert!(!contact.is_over(), "its clock is known");
        contact.on_failed(NodeId::new(2));
        assert!(contact.is_over() && !contact.has_majority());
        contact.on_answered(NodeId::new(2));
        assert!(contact.has_majority());
        assert_eq!(
            contact.answered(),
            NodeSet::from_iter([NodeId::new(0), NodeId::new(2)])
        );
    }

    #[test]
    fn a_majority_is_enough() {
        let mut contact = Contact::new(3);
        contact.on_answered(NodeId::new(1));
        contact.on_answered(NodeId::new(1));
        assert!(!contact.is_over(), "a node counts once");
        contact.on_answered(NodeId::new(2));
        assert!(contact.is_over());
    }
}
