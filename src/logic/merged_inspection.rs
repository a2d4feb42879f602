//! The state of an inspected lock, from all nodes.

use std::cmp::Reverse;
use std::time::Duration;

use crate::inspection::{Inspection, LockState, StoredKey, StoredLock};
use crate::logic::ballot::quorum;

impl Inspection {
    /// The state on a majority of the nodes; failed nodes are in no majority.
    #[must_use]
    pub fn state(&self) -> LockState {
        let answers = self.nodes.iter();
        let stored: Vec<_> = answers.filter_map(|it| it.stored.as_ref().ok()).collect();
        state(self.nodes.len(), &stored)
    }
}

/// `stored`: the answers of some of `nodes`.
fn state(nodes: usize, stored: &[&StoredLock]) -> LockState {
    // Answers with the same state as `one`: readers count together, whichever a node has.
    let like = |one: &StoredKey| -> Vec<&StoredLock> {
        let same = |other: &StoredKey| match (one, other) {
            (StoredKey::Held { value: one, .. }, StoredKey::Held { value: other, .. }) => {
                one == other
            }
            _ => std::mem::discriminant(one) == std::mem::discriminant(other),
        };
        stored.iter().copied().filter(|it| same(&it.key)).collect()
    };
    let most = stored
        .iter()
        .map(|it| like(&it.key))
        .max_by_key(Vec::len)
        .unwrap_or_default();
    let open = nodes.saturating_sub(stored.len());
    let Some(one) = most.first().filter(|_| quorum(nodes) <= most.len()) else {
        let may_decide = quorum(nodes) <= most.len().saturating_add(open);
        return if may_decide {
            LockState::Unknown
        } else {
            LockState::NoMajority
        };
    };
    let left = time_left(nodes, &most);
    match &one.key {
        StoredKey::Missing => LockState::Free,
        StoredKey::Held { holder, .. } => LockState::Held {
            holder: holder.clone(),
            left,
        },
        StoredKey::Foreign => LockState::Held { holder: None, left },
        StoredKey::OtherType => LockState::KeyInUse,
        StoredKey::Read { .. } => {
            let count = |lock: &&StoredLock| {
                if let StoredKey::Read { count, .. } = lock.key {
                    count
                } else {
                    0
                }
            };
            let readers = most.iter().map(count).max().unwrap_or(0);
            LockState::Read { readers, left }
        }
    }
}

/// Time for which a majority keeps these keys: until the first of its longest-lived ones expires.
fn time_left(nodes: usize, keys: &[&StoredLock]) -> Option<Duration> {
    let mut left: Vec<_> = keys
        .iter()
        .map(|it| it.left.unwrap_or(Duration::MAX))
        .collect();
    left.sort_unstable_by_key(|it| Reverse(*it));
    left.get(quorum(nodes).saturating_sub(1))
        .copied()
        .filter(|it| *it != Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NodeFailure;
    use crate::ids::NodeId;
    use crate::inspection::{InspectedNode, SecretValue};

    fn key(key: StoredKey, seconds: Option<u64>) -> StoredLock {
        let left = seconds.map(Duration::from_secs);
        StoredLock {
            key,
            left,
            counter: None,
            waiting: 0,
            waiting_for: None,
        }
    }

    fn free() -> StoredLock {
        key(StoredKey::Missing, None)
    }

    fn held(by: &str, seconds: Option<u64>) -> StoredLock {
        let value = SecretValue::new(by.as_bytes());
        key(
            StoredKey::Held {
                holder: Some(by.into()),
                value,
            },
            seconds,
        )
    }

    fn read(count: u64, seconds: u64) -> StoredLock {
        key(
            StoredKey::Read {
                count,
                readers: Vec::new(),
            },
            Some(seconds),
        )
    }

    fn of(nodes: usize, stored: &[StoredLock]) -> LockState {
        state(nodes, &stored.iter().collect::<Vec<_>>())
    }

    fn held_by(by: &str, seconds: Option<u64>) -> LockState {
        LockState::Held {
            holder: Some(by.into()),
            left: seconds.map(Duration::from_secs),
        }
    }

    #[test]
    fn a_lock_is_held_for_as_long_as_a_majority_has_its_key() {
        let a = |seconds| held("a", Some(seconds));
        let b = |seconds| held("b", Some(seconds));
        assert_eq!(of(3, &[a(3), b(9), a(5)]), held_by("a", Some(3)));
        assert_eq!(of(3, &[a(3), a(9), a(5)]), held_by("a", Some(5)));
        assert_eq!(
            of(5, &[a(1), a(2), a(3), a(4), a(5)]),
            held_by("a", Some(3))
        );
        assert_eq!(
            of(3, &[held("a", None), held("a", None), a(5)]),
            held_by("a", None),
            "two have it for ever"
        );
        assert_eq!(of(3, &[held("a", None), a(2), a(5)]), held_by("a", Some(5)));
        assert_eq!(of(1, &[a(1)]), held_by("a", Some(1)));
    }

    #[test]
    fn a_foreign_key_holds_a_lock_without_a_holder_name() {
        let foreign = || key(StoredKey::Foreign, Some(4));
        let expected = LockState::Held {
            holder: None,
            left: Some(Duration::from_secs(4)),
        };
        assert_eq!(of(3, &[foreign(), foreign(), free()]), expected);
    }

    #[test]
    fn a_key_of_another_type_on_a_majority_is_in_use_for_no_lock() {
        let other = || key(StoredKey::OtherType, None);
        assert_eq!(of(3, &[other(), other(), free()]), LockState::KeyInUse);
        assert_eq!(of(3, &[other(), free(), free()]), LockState::Free);
    }

    #[test]
    fn the_largest_number_of_readers_on_a_node_counts() {
        let expected = LockState::Read {
            readers: 4,
            left: Some(Duration::from_secs(7)),
        };
        assert_eq!(of(3, &[read(2, 7), free(), read(4, 9)]), expected);
    }

    #[test]
    fn a_lock_is_free_if_a_majority_has_no_key() {
        assert_eq!(
            of(3, &[free(), held("a", Some(1)), free()]),
            LockState::Free
        );
        assert_eq!(
            of(5, &[free(), free(), free()]),
            LockState::Free,
            "two could not be asked"
        );
    }

    #[test]
    fn no_majority_is_certain_only_if_no_open_node_could_make_one() {
        let a = || held("a", Some(1));
        let b = || held("b", Some(1));
        assert_eq!(of(3, &[a(), b(), free()]), LockState::NoMajority);
        assert_eq!(of(3, &[a(), b()]), LockState::Unknown);
        assert_eq!(
            of(5, &[a(), b(), free(), read(1, 1)]),
            LockState::NoMajority
        );
        assert_eq!(of(5, &[a(), a(), b(), b()]), LockState::Unknown);
        assert_eq!(of(4, &[a(), a(), b(), b()]), LockState::NoMajority);
        assert_eq!(of(3, &[]), LockState::Unknown);
    }

    #[test]
    fn nodes_without_an_answer_are_in_no_majority() {
        let stored = [
            Ok(held("a", Some(2))),
            Ok(held("a", Some(2))),
            Err(NodeFailure::TimedOut),
        ];
        let node = |(node, stored)| InspectedNode {
            node: NodeId::new(node),
            address: "h:1".into(),
            stored,
        };
        let inspection = Inspection {
            name: b"x"[..].into(),
            slot: None,
            nodes: (0..).zip(stored).map(node).collect(),
        };

        assert_eq!(inspection.state(), held_by("a", Some(2)));
        let text = inspection.state().to_string();
        assert_eq!(text, "held by a for another 2.0 s unless extended");
    }
}
