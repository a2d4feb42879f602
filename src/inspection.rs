//! What nodes store about a lock, for people who look into it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{NodeFailure, NodeReport};
use crate::ids::NodeId;
use crate::time::About;

/// What the nodes store about one lock, or one slot of a semaphore: [`Mutex::inspect`](crate::Mutex::inspect),
/// [`Semaphore::inspect`](crate::Semaphore::inspect).
///
/// It was true when the nodes answered, and may be over by now: good for people, for logs and for health pages, and no
/// basis for work that the lock is to protect.
#[derive(Clone, Debug)]
pub struct Inspection {
    pub(crate) name: Arc<[u8]>,
    pub(crate) slot: Option<u8>,
    pub(crate) nodes: Vec<InspectedNode>,
}

/// Locks and permits that somebody holds: [`LockManager::list`](crate::LockManager::list).
#[derive(Clone, Debug)]
pub struct Listing {
    pub(crate) locks: Vec<Inspection>,
    pub(crate) missed: Vec<NodeReport>,
    pub(crate) is_complete: bool,
}

impl Listing {
    /// Each of them, sorted by name; the slots of a semaphore one by one. Some may have been released since they were found.
    #[must_use]
    pub fn locks(&self) -> &[Inspection] {
        &self.locks
    }

    /// Nodes that were not looked through to their end, and why.
    #[must_use]
    pub fn missed(&self) -> &[NodeReport] {
        &self.missed
    }

    /// Whether all nodes were looked through to their end. A lock that is held stands on a majority, so it is found also when
    /// a minority was missed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}

/// What the nodes together say of a lock.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum LockState {
    /// A majority of the nodes could grant it, unless it is reserved for a call that waits.
    Free,
    /// Somebody holds it on a majority of the nodes.
    Held {
        /// Who, if the key's value says so: see [`NodeAnswer::Held`](crate::error::NodeAnswer::Held).
        holder: Option<Arc<str>>,
        /// How long it stays held if it is not extended; `None`: the keys have no expiry.
        left: Option<Duration>,
    },
    /// Readers hold it on a majority of the nodes.
    Read {
        /// How many, on the node that knows the most of them.
        readers: u64,
        /// How long it stays held if none of them extends.
        left: Option<Duration>,
    },
    /// On a majority of the nodes something stands there that is no lock: calls end with
    /// [`AcquireError::KeyInUse`](crate::AcquireError::KeyInUse).
    KeyInUse,
    /// Keys stand on several nodes, and nobody has a majority: calls that compete just now, or what was left behind by a
    /// program that has ended.
    NoMajority,
    /// A majority could not be asked.
    Unknown,
}

/// What one node says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InspectedNode {
    /// Which node.
    pub node: NodeId,
    /// Its host and port, or the path of its socket; without user and password.
    pub address: Arc<str>,
    /// What it stores, or why it could not be asked.
    pub stored: Result<StoredLock, NodeFailure>,
}

/// What one node stores about a lock.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct StoredLock {
    /// The lock's key.
    pub key: StoredKey,
    /// How long the key still has to live. `None`: it has no expiry, or there is none.
    pub left: Option<Duration>,
    /// The fencing counter, which stays when a lock is released; `None` if there is none, or what stands there is none.
    pub counter: Option<u64>,
    /// How many clients wait for the lock there: a program that waits counts once, whatever the number of its threads, and
    /// a call that wants to read counts by itself.
    pub waiting: u64,
    /// How long the first of them has waited, by the node's clock.
    pub waiting_for: Option<Duration>,
    /// How long the lock stays reserved for a client that was told of a release and has not come yet.
    pub reserved: Option<Duration>,
}

/// The key of a lock, as one node stores it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum StoredKey {
    /// There is none.
    Missing,
    /// A holder's.
    Held {
        /// Who, if the value says so: see [`NodeAnswer::Held`](crate::error::NodeAnswer::Held).
        holder: Option<Arc<str>>,
        /// What proves who holds it.
        value: SecretValue,
    },
    /// Readers share it.
    Read {
        /// How many there are.
        count: u64,
        /// Some of them: a hundred at most.
        readers: Vec<StoredReader>,
    },
    /// A value that is longer than any lock's: some other program's.
    Foreign,
    /// A key of another type, which no lock has.
    OtherType,
}

/// One reader, as a node stores it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct StoredReader {
    /// Who: see [`NodeAnswer::Held`](crate::error::NodeAnswer::Held).
    pub holder: Option<Arc<str>>,
    /// How long its entry still has to live.
    pub left: Duration,
    pub(crate) value: SecretValue,
}

/// A value with which a lock can be released. Two can be compared, and none is ever shown.
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
    /// What proves each hold of the lock, and whether that is a reader's.
    pub(crate) fn holds(&self) -> impl Iterator<Item = (&SecretValue, bool)> {
        let (holder, readers) = match self {
            StoredKey::Held { value, .. } => (Some(value), &[][..]),
            StoredKey::Read { readers, .. } => (None, &readers[..]),
            StoredKey::Missing | StoredKey::Foreign | StoredKey::OtherType => (None, &[][..]),
        };
        holder.map(|it| (it, false)).into_iter().chain(readers.iter().map(|it| (&it.value, true)))
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
            LockState::KeyInUse => f.write_str("the key is in use for something that is not a lock"),
            LockState::NoMajority => f.write_str("nobody has a majority"),
            LockState::Unknown => f.write_str("unknown, too few nodes could be asked"),
        }
    }
}

/// `n0 (10.0.0.1:6379): held by web-3/4711 for another 12 s; 2 wait, the first for 3 s`.
impl fmt::Display for InspectedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): ", self.node, self.address)?;
        match &self.stored {
            Ok(stored) => stored.fmt(f),
            Err(failure) => failure.fmt(f),
        }
    }
}

impl fmt::Display for StoredLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            StoredKey::Missing => f.write_str("no key")?,
            StoredKey::Held { holder, .. } => {
                f.write_str("held")?;
                by(f, holder.as_deref())?;
            }
            StoredKey::Read { count, .. } => write!(f, "held by readers ({count})")?,
            StoredKey::Foreign => f.write_str("held by another program")?,
            StoredKey::OtherType => f.write_str("a key of another type")?,
        }
        if self.key != StoredKey::Missing {
            for_another(f, self.left)?;
        }
        if let Some(left) = self.reserved {
            write!(f, "; reserved for {}", About(left))?;
        }
        if 0 < self.waiting {
            write!(f, "; {} waiting", self.waiting)?;
        }
        if let Some(waiting_for) = self.waiting_for {
            write!(f, ", the first for {}", About(waiting_for))?;
        }
        Ok(())
    }
}

fn by(f: &mut fmt::Formatter<'_>, holder: Option<&str>) -> fmt::Result {
    holder.map_or(Ok(()), |it| write!(f, " by {it}"))
}

fn for_another(f: &mut fmt::Formatter<'_>, left: Option<Duration>) -> fmt::Result {
    match left {
        Some(left) => write!(f, " for another {}", About(left)),
        None => f.write_str(", without expiry"),
    }
}

impl Inspection {
    /// The name, without the manager's prefix.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Which slot of a semaphore it is about, from 0; `None`: it is about a lock.
    #[must_use]
    pub fn slot(&self) -> Option<usize> {
        self.slot.map(usize::from)
    }

    /// What each node says, in the order of the nodes.
    #[must_use]
    pub fn nodes(&self) -> &[InspectedNode] {
        &self.nodes
    }

    /// What the nodes that could be asked store.
    pub(crate) fn stored(&self) -> impl Iterator<Item = &StoredLock> {
        self.nodes.iter().filter_map(|it| it.stored.as_ref().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_stores_is_told_in_a_line_without_what_proves_a_hold() {
        let secret = "0123456789abcdef0123456789abcdef";
        let value = SecretValue::new(format!("{secret} web-3/4711").as_bytes());
        let key = StoredKey::Held { holder: Some("web-3/4711".into()), value };
        let (left, waiting_for) = (Some(Duration::from_secs(12)), Some(Duration::from_secs(3)));
        let stored = StoredLock { key, left, counter: Some(7), waiting: 2, waiting_for, reserved: None };
        let row = InspectedNode { node: NodeId::new(0), address: "10.0.0.1:6379".into(), stored: Ok(stored) };

        let line = "n0 (10.0.0.1:6379): held by web-3/4711 for another 12.0 s; 2 waiting, the first for 3.0 s";
        assert_eq!(row.to_string(), line);
        assert!(!format!("{row:?}").contains(&secret[..8]), "{row:?}");
    }
}
