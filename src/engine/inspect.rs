//! Looking at a lock, and taking it from whoever holds it: for operators and health pages.

mod list;

use std::collections::HashMap;
use std::sync::Arc;

use crate::answer::Answer;
use crate::engine::round::pending::ask;
use crate::engine::shared::ManagerState;
use crate::engine::spec::{self, LockSpec};
use crate::error::{AcquireError, NodeAnswer, NodeFailure, NodeReport};
use crate::ids::NodeSet;
use crate::inspection::{InspectedNode, Inspection, StoredKey};
use crate::wire::{Command, KeyTtls, LockCommands, LockKeys};

impl ManagerState {
    /// Whether a lock can be called so.
    pub(crate) fn check_name(&self, name: &[u8]) -> Result<(), AcquireError> {
        spec::check_name(&LockCommands::mutex(
            &self.config.prefix,
            name,
            KeyTtls::default(),
        ))
    }

    /// Asks all nodes what they store about the lock called `name`, or about a slot of the semaphore that is called so, and
    /// waits for all of them.
    pub(crate) fn inspect(&self, name: &[u8], slot: Option<u8>) -> Inspection {
        let command = self.looked(name, slot).inspect();
        self.inspection(name, slot, ask(&self.fanout, command, None))
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

    /// Takes a lock from those who were seen to hold it, on the nodes where they were seen. What came to stand there since
    /// stays: nodes compare.
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
        self.send_each(
            holds
                .into_iter()
                .map(|((value, reads), to)| (lock.take(value.as_bytes(), reads, ttls), to)),
        )
    }

    /// Deletes the counters that were seen, if nobody was seen to hold the lock or to wait for it. One that has changed since
    /// stays: nodes compare.
    pub(crate) fn delete_counters(&self, seen: &Inspection) -> Vec<NodeReport> {
        let lock = self.looked(&seen.name, seen.slot);
        let stored = || {
            seen.nodes
                .iter()
                .filter_map(|it| Some((it.node, it.stored.as_ref().ok()?)))
        };
        let is_in_use = stored().any(|(_, it)| it.key != StoredKey::Missing || it.waiting != 0);
        let mut counters: HashMap<_, NodeSet> = HashMap::new();
        for (node, stored) in stored().filter(|_| !is_in_use) {
            if let Some(counter) = stored.counter {
                counters.entry(counter).or_default().insert(node);
            }
        }
        self.send_each(
            counters
                .into_iter()
                .map(|(counter, to)| (lock.delete_counter(counter), to)),
        )
    }

    /// What the nodes answer, of which each gets the commands that are for it.
    fn send_each(&self, commands: impl Iterator<Item = (Command, NodeSet)>) -> Vec<NodeReport> {
        let mut rows = vec![NodeAnswer::NotAsked; self.fanout.nodes.len()];
        for (command, to) in commands {
            let answers = ask(&self.fanout, command, Some(to));
            for ((node, answer), row) in self.fanout.ids().zip(answers).zip(&mut rows) {
                // A failure is what counts: something of the lock may still stand there.
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
