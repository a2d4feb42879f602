//! Looking at a lock, and taking it from whoever holds it: for operators and health pages.

mod list;

use std::sync::Arc;

use crate::answer::{Answer, ReleaseReply};
use crate::engine::round::ask;
use crate::engine::shared::Shared;
use crate::error::{NodeAnswer, NodeFailure, NodeReport};
use crate::ids::NodeSet;
use crate::inspection::{InspectedNode, Inspection, SecretValue, StoredKey, StoredLock};
use crate::time;
use crate::wire::Looked;

impl Shared {
    /// Asks all nodes what they store about the lock called `name`, or about a slot of the semaphore that is called so, and
    /// waits for all of them.
    pub(crate) fn inspect(&self, name: &[u8], slot: Option<u8>) -> Inspection {
        let command = Looked::new(&self.with_prefix(name), slot).inspect();
        let answers = ask::ask(&self.fanout, command, None, self.fanout.deadline(time::tick()));
        let stored = |answer: Result<Answer, NodeFailure>| match answer? {
            Answer::Inspect(stored) => Ok(*stored),
            _ => Err(NodeFailure::Protocol { reason: "an answer to another command".to_owned() }),
        };
        let nodes = self.fanout.nodes().iter().zip(answers).map(|(node, answer)| {
            let (node, address) = (node.id, Arc::clone(&node.address));
            InspectedNode { node, address, stored: stored(answer) }
        });
        Inspection { name: name.into(), slot, nodes: nodes.collect() }
    }

    /// Takes a lock from those who were seen to hold it, on the nodes where they were seen. What came to stand there since
    /// stays: nodes compare. `leaked`: only where the key has no expiry.
    pub(crate) fn take_from(&self, seen: &Inspection, leaked: bool) -> Vec<NodeReport> {
        let lock = Looked::new(&self.with_prefix(&seen.name), seen.slot);
        let mut rows = vec![NodeAnswer::NotAsked; self.fanout.len()];
        for (value, reads) in holders(seen) {
            let fits = |it: &StoredLock| has(&it.key, &value) && !(leaked && it.left.is_some());
            let has = |it: &&InspectedNode| it.stored.as_ref().is_ok_and(fits);
            let to: NodeSet = seen.nodes.iter().filter(has).map(|it| it.node).collect();
            let value = value.as_bytes();
            let command = if reads { lock.take_from_reader(value) } else { lock.take_from_holder(value) };
            let answers = ask::ask(&self.fanout, command, Some(to), self.fanout.deadline(time::tick()));
            for (node, answer) in self.fanout.ids().zip(answers).filter(|(it, _)| to.contains(*it)) {
                let Some(row) = rows.get_mut(node.index()) else { continue };
                // A failure is what counts: something of the lock may still stand there.
                if !matches!(row, NodeAnswer::Failed(_)) {
                    *row = match answer {
                        Ok(Answer::Release(ReleaseReply::Deleted | ReleaseReply::NotOurs)) => NodeAnswer::Released,
                        Ok(other) => NodeAnswer::from(&other),
                        Err(failure) => NodeAnswer::Failed(failure),
                    };
                }
            }
        }
        self.fanout.report(rows)
    }

    fn with_prefix(&self, name: &[u8]) -> Vec<u8> {
        [&*self.config.prefix, name].concat()
    }
}

/// Everybody who holds something of the lock, once each; whether it reads.
fn holders(seen: &Inspection) -> Vec<(SecretValue, bool)> {
    let mut holders = Vec::new();
    for stored in seen.stored() {
        let new: Vec<_> = match &stored.key {
            StoredKey::Held { value, .. } => vec![(value.clone(), false)],
            StoredKey::Read { readers, .. } => readers.iter().map(|it| (it.value.clone(), true)).collect(),
            StoredKey::Missing | StoredKey::Foreign => Vec::new(),
        };
        holders.extend(new);
    }
    let mut known = std::collections::HashSet::new();
    holders.retain(|(value, _)| known.insert(value.clone()));
    holders
}

fn has(key: &StoredKey, wanted: &SecretValue) -> bool {
    match key {
        StoredKey::Held { value, .. } => value == wanted,
        StoredKey::Read { readers, .. } => readers.iter().any(|it| it.value == *wanted),
        StoredKey::Missing | StoredKey::Foreign => false,
    }
}
