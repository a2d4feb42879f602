//! The state of a lock on the nodes, for people.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{NodeFailure, NodeReport};
use crate::ids::NodeId;
use crate::time::About;

/// The state of one lock on the nodes, or of one slot of a semaphore:
/// [`Mutex::inspect`](crate::Mutex::inspect), [`Semaphore::inspect`](crate::Semaphore::inspect).
///
/// Valid when the nodes answered and possibly outdated now: for people, logs and health pages, not
/// a basis for work that the lock protects.
#[derive(Clone, Debug)]
pub struct Inspection {
    pub(crate) name: Arc<[u8]>,
    pub(crate) slot: Option<u8>,
    pub(crate) nodes: Vec<InspectedNode>,
}

/// Held locks and permits: [`LockManager::list`](crate::LockManager::list).
#[derive(Clone, Debug)]
pub struct Listing {
    pub(crate) locks: Vec<Inspection>,
    pub(crate) missed: Vec<NodeReport>,
    pub(crate) is_complete: bool,
}

impl Listing {
    /// All locks found, sorted by name, with one entry per permit. Some may have been released
    /// since.
    #[must_use]
    pub fn locks(&self) -> &[Inspection] {
        &self.locks
    }

    /// Nodes that were not searched completely, and why.
    #[must_use]
    pub fn missed(&self) -> &[NodeReport] {
        &self.missed
    }

    /// Whether all nodes were searched completely. A held lock is on a majority, so it is found
    /// even if a minority was missed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}

/// The state of a lock, from all nodes together.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum LockState {
    /// Free on a majority.
    Free,
    /// Held on a majority.
    Held {
        /// The holder, if the key's value names one: see
        /// [`NodeAnswer::Held`](crate::error::NodeAnswer::Held).
        holder: Option<Arc<str>>,
        /// Time left unless the lock is extended; `None`: the keys have no expiry.
        left: Option<Duration>,
    },
    /// Held by readers on a majority.
    Read {
        /// Their number, on the node with the most.
        readers: u64,
        /// Time left unless one of them extends.
        left: Option<Duration>,
    },
    /// The key holds something else than a lock on a majority: calls return
    /// [`AcquireError::KeyInUse`](crate::AcquireError::KeyInUse).
    KeyInUse,
    /// Keys on some nodes, and no majority for anyone: calls that compete now, or leftovers of a
    /// crashed program.
    NoMajority,
    /// Too few nodes answered.
    Unknown,
}

/// The answer of one node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InspectedNode {
    /// The node.
    pub node: NodeId,
    /// Its host and port, or the path of its socket; without user and password.
    pub address: Arc<str>,
    /// Its state of the lock, or why it failed.
    pub stored: Result<StoredLock, NodeFailure>,
}

/// The state of a lock on one node.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct StoredLock {
    /// The lock's key.
    pub key: StoredKey,
    /// Time to live of the key. `None`: no expiry, or no key.
    pub left: Option<Duration>,
    /// The fencing counter, which stays after a release; `None` if there is no valid one.
    pub counter: Option<u64>,
    /// Waiting calls: one per program, whatever the number of its threads, and one per waiting
    /// reader.
    pub waiting: u64,
    /// Wait of the first of them, by the node's clock.
    pub waiting_for: Option<Duration>,
}

/// The key of a lock, as one node stores it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum StoredKey {
    /// No key.
    Missing,
    /// The key of a holder.
    Held {
        /// The holder, if the value names one: see
        /// [`NodeAnswer::Held`](crate::error::NodeAnswer::Held).
        holder: Option<Arc<str>>,
        /// The secret value, for [`Admin::release`](crate::Admin::release).
        value: SecretValue,
    },
    /// Readers share it.
    Read {
        /// Their number.
        count: u64,
        /// Up to a hundred of them.
        readers: Vec<StoredReader>,
    },
    /// A value longer than that of any lock, from another program.
    Foreign,
    /// A key of another type.
    OtherType,
}

/// One reader, as a node stores it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct StoredReader {
    /// The holder: see [`NodeAnswer::Held`](crate::error::NodeAnswer::Held).
    pub holder: Option<Arc<str>>,
    /// Time to live of its entry.
    pub left: Duration,
    pub(crate) value: SecretValue,
}

/// The secret value of a lock key. Comparable, never shown.
#[derive(Clone, Eq, Hash, PartialEq)]
pub struct SecretValue(Arc<[u8]>);

impl SecretValue {
    pub(crate) fn new(value: &[u8]) -> SecretValue {
        SecretValue(value.into())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(..)")
    }
}

impl StoredKey {
    /// The secret of each hold, and whether it is a reader's.
    pub(crate) fn holds(&self) -> impl Iterator<Item = (&SecretValue, bool)> {
        let mut holder = None;
        let mut readers = &[][..];
        match self {
            StoredKey::Held { value, .. } => holder = Some((value, false)),
            StoredKey::Read { readers: all, .. } => readers = all,
            StoredKey::Missing | StoredKey::Foreign | StoredKey::OtherType => {}
        }
        let readers = readers.iter().map(|reader| (&reader.value, true));
        holder.into_iter().chain(readers)
    }
}

impl fmt::Display for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockState::Free => f.write_str("free"),
            LockState::Held { holder, left } => {
                f.write_str("held")?;
                by(f, holder.as_deref())?;
                for_another(f, *left)
            }
            LockState::Read { readers, left } => {
                write!(f, "held by readers ({readers})")?;
                for_another(f, *left)
            }
            LockState::KeyInUse => {
                f.write_str("the key is in use for something that is not a lock")
            }
            LockState::NoMajority => f.write_str("nobody has a majority"),
            LockState::Unknown => f.write_str("unknown: too few nodes answered"),
        }
    }
}

fn by(f: &mut fmt::Formatter<'_>, holder: Option<&str>) -> fmt::Result {
    holder.map_or(Ok(()), |it| write!(f, " by {it}"))
}

fn for_another(f: &mut fmt::Formatter<'_>, left: Option<Duration>) -> fmt::Result {
    match left {
        Some(left) => write!(f, " for another {} unless extended", About(left)),
        None => f.write_str(", without expiry"),
    }
}

impl Inspection {
    /// The name, without the manager's prefix.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The permit of a semaphore, from 0; `None` for other locks.
    #[must_use]
    pub fn slot(&self) -> Option<usize> {
        self.slot.map(usize::from)
    }

    /// One entry per node, in their order.
    #[must_use]
    pub fn nodes(&self) -> &[InspectedNode] {
        &self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_text_of_a_stored_key_hides_its_secret() {
        let secret = "0123456789abcdef0123456789abcdef";
        let key = StoredKey::Held {
            holder: Some("web-3/4711".into()),
            value: SecretValue::new(format!("{secret} web-3/4711").as_bytes()),
        };
        let text = format!("{key:?}");
        assert!(
            text.contains("web-3/4711") && !text.contains(&secret[..8]),
            "{text}"
        );
    }
}
