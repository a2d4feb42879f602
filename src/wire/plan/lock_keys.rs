//! The keys of one lock.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::config::RESERVED;
use crate::wire::keys::beside;

/// A lock key and the keys beside it.
#[derive(Clone, Debug)]
pub(crate) struct LockKeys {
    pub(super) lock: Arc<[u8]>,
    pub(super) fence: Vec<u8>,
    pub(super) waiters: Vec<u8>,
    /// Its key is called the turn.
    pub(super) reservation: Vec<u8>,
}

/// How long things last on a node, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct KeyTtls {
    /// Of a fencing counter; 0 for no end.
    pub(crate) fence: u64,
}

impl LockKeys {
    pub(super) fn of(lock: Arc<[u8]>) -> LockKeys {
        let [fence, waiters, reservation] =
            ["fence", "waiters", "turn"].map(|kind| beside(kind, &lock));
        LockKeys {
            lock,
            fence,
            waiters,
            reservation,
        }
    }

    pub(super) fn lock(&self) -> &[u8] {
        &self.lock
    }

    pub(super) fn fence(&self) -> &[u8] {
        &self.fence
    }

    pub(super) fn waiters(&self) -> &[u8] {
        &self.waiters
    }

    pub(super) fn reservation(&self) -> &[u8] {
        &self.reservation
    }
}

/// Stands for several keys together: in the queues of a manager, and in the notices that its calls get. No lock has it.
pub(super) fn together<'a>(kind: &str, names: impl IntoIterator<Item = &'a [u8]>) -> Arc<[u8]> {
    // The same in all versions is not needed: it tells what has several keys apart within one manager.
    let mut hasher = DefaultHasher::new();
    names.into_iter().for_each(|it| it.hash(&mut hasher));
    [
        RESERVED,
        format!("{kind}:{:016x}", hasher.finish()).as_bytes(),
    ]
    .concat()
    .into()
}

pub(super) fn digits(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}
