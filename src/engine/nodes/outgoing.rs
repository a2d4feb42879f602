//! What is sent to several nodes together, and what became of it there.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::engine::nodes::job::Sink;
use crate::error::NodeFailure;
use crate::ids::{NodeId, NodeSet};
use crate::wire::Command;

/// A command for several nodes, and the sink of their answers.
pub(crate) struct Outgoing {
    pub(super) command: Arc<Command>,
    pub(super) sink: Option<Arc<dyn Sink>>,
    /// All nodes if `None`.
    to: Option<NodeSet>,
    pub(super) takers: Takers,
}

/// Which nodes take a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Takers {
    /// Those that can take it now; the others refuse it.
    Ready,
    /// Likewise; but a node refuses it only after a longer silence, see [`Outgoing::patiently`].
    Patient,
    /// Likewise; but it goes to no node while so many are stalled that no majority can take it.
    ReadyMajority,
    /// A release: every node, whatever its health. It is worth sending for so long.
    All(Duration),
}

impl Outgoing {
    /// For all nodes that can take it now.
    pub(crate) fn ask<S: Sink + 'static>(command: Command, sink: &Arc<S>) -> Outgoing {
        let sink: Arc<dyn Sink> = Arc::<S>::clone(sink);
        Outgoing {
            command: Arc::new(command),
            sink: Some(sink),
            to: None,
            takers: Takers::Ready,
        }
    }

    /// For `nodes` only, if that is some.
    pub(crate) fn to(self, nodes: Option<NodeSet>) -> Outgoing {
        Outgoing { to: nodes, ..self }
    }

    /// It is of no use at fewer nodes than a majority. So while that many are stalled it is sent to none: what the others
    /// would be asked, and would have to be asked to take back, is all that many callers that try again and again would keep
    /// them busy with, and they might never catch up.
    pub(crate) fn for_majority(self) -> Outgoing {
        Outgoing {
            takers: Takers::ReadyMajority,
            ..self
        }
    }

    /// A late answer counts as well. So a slow node takes it; a node that has sent nothing for a second or the response
    /// timeout, whichever is longer, does not. Otherwise the end of what its commands have set would move on, and a dead
    /// connection would stay.
    pub(crate) fn patiently(self) -> Outgoing {
        Outgoing {
            takers: Takers::Patient,
            ..self
        }
    }

    /// A release for `nodes`, whatever their health. `keep`: how long it is worth sending.
    pub(crate) fn release(command: Command, nodes: NodeSet, keep: Duration) -> Outgoing {
        Outgoing {
            command: Arc::new(command),
            sink: None,
            to: Some(nodes),
            takers: Takers::All(keep),
        }
    }

    /// Its answers go to `sink`, if that is some.
    pub(crate) fn answered_to<S: Sink + 'static>(self, sink: Option<&Arc<S>>) -> Outgoing {
        let sink = sink.map(|it| -> Arc<dyn Sink> { Arc::<S>::clone(it) });
        Outgoing { sink, ..self }
    }

    pub(super) fn goes_to(&self, node: NodeId) -> bool {
        self.to.is_none_or(|it| it.contains(node))
    }
}

/// Commands that were enqueued: which nodes took them, and why others did not.
#[derive(Default)]
#[must_use]
pub(crate) struct Enqueued {
    /// Nodes whose worker has something to send.
    pub(crate) asked: NodeSet,
    /// Those of them that took a command that they could have refused.
    pub(crate) taken: NodeSet,
    pub(super) refused: Vec<RefusedCommand>,
}

/// A command that a node did not take, and the sink that has to be notified.
pub(super) struct RefusedCommand {
    pub(super) node: NodeId,
    pub(super) failure: NodeFailure,
    pub(super) sink: Option<Arc<dyn Sink>>,
}

impl RefusedCommand {
    pub(super) fn report(self) {
        if let Some(sink) = self.sink {
            sink.deliver(self.node, Answer::Failed(self.failure), false);
        }
    }
}

impl Enqueued {
    pub(crate) fn merge(&mut self, other: Enqueued) {
        self.asked = self.asked.union(other.asked);
        self.taken = self.taken.union(other.taken);
        self.refused.extend(other.refused);
    }
}
