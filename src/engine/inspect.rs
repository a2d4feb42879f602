//! Inspecting a lock and taking it from its holder, for operators and health pages.

mod list;

use std::collections::HashMap;
use std::sync::Arc;

use crate::answer::Answer;
use crate::engine::round::query;
use crate::engine::shared::ManagerState;
use crate::engine::spec::{self, LockSpec};
use crate::error::{AcquireError, NodeAnswer, NodeFailure, NodeReport};
use crate::ids::NodeSet;
use crate::inspection::{InspectedNode, Inspection};
use crate::wire::{KeyTtls, LockCommands, LockKeys};

impl ManagerState {
    /// Checks a name.
    pub(crate) fn check_name(&self, name: &[u8]) -> Result<(), AcquireError> {
        spec::check_name(&LockCommands::mutex(
            &self.config.prefix,
            name,
            KeyTtls::default(),
        ))
    }

    /// The state of the lock `name`, or of a slot of the semaphore `name`, on all nodes. Waits for
    /// all of them.
    pub(crate) fn inspect(&self, name: &[u8], slot: Option<u8>) -> Inspection {
        let command = self.looked(name, slot).inspect();
        self.inspection(name, slot, query(&self.fanout, command, None))
    }

    fn inspection(
        &self,
        name: &[u8],
        slot: Option<u8>,
        answers: impl IntoIterator<Item = Result<Answer, NodeFailure>>,
    ) -> Inspection {
        let nodes = self.fanout.nodes.iter().zip(answers);
        let nodes = nodes.map(|(node, answer)| InspectedNode {
            node: node.id,
            address: Arc::clone(&node.address),
            stored: answer.and_then(|answer| match answer {
                Answer::Inspect(stored) => Ok(*stored),
                _ => Err(NodeFailure::of_another_command()),
            }),
        });
        Inspection {
            name: name.into(),
            slot,
            nodes: nodes.collect(),
        }
    }

    /// Takes a lock from its inspected holders, on the nodes that showed them. Nodes compare
    /// values, so a later holder keeps the lock.
    pub(crate) fn take_from(&self, seen: &Inspection) -> Vec<NodeReport> {
        let lock = self.looked(&seen.name, seen.slot);
        let ttls = LockSpec::key_ttls(&self.config);
        let mut holds: HashMap<_, NodeSet> = HashMap::new();
        for row in &seen.nodes {
            if let Ok(stored) = &row.stored {
                for hold in stored.key.holds() {
                    holds.entry(hold).or_default().insert(row.node);
                }
            }
        }
        let mut rows = vec![NodeAnswer::NotAsked; self.fanout.nodes.len()];
        for ((value, reads), to) in holds {
            let command = lock.take(value.as_bytes(), reads, ttls);
            let answers = query(&self.fanout, command, Some(to));
            for ((node, answer), row) in self.fanout.ids().zip(answers).zip(&mut rows) {
                // A failure wins: the lock may still be there.
                if to.contains(node) && !matches!(row, NodeAnswer::Failed(_)) {
                    *row = answer.map_or_else(NodeAnswer::Failed, |it| NodeAnswer::from(&it));
                }
            }
        }
        self.fanout.report(rows)
    }

    fn looked(&self, name: &[u8], slot: Option<u8>) -> LockKeys {
        LockKeys::named(&[&*self.config.prefix, name].concat(), slot)
    }
}
