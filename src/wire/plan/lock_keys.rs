//! The keys of one lock, and the value that its owner gives it.

use std::sync::Arc;

use crate::ids::{OwnerLabel, OwnerToken};
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
        let [fence, waiters, reservation] = ["fence", "waiters", "turn"].map(|kind| beside(kind, &lock));
        LockKeys { lock, fence, waiters, reservation }
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

/// The value of a lock while `owner` holds it: its token, a space, and the label. The same in all commands of a hold,
/// because nodes compare whole values.
pub(super) fn value(owner: OwnerToken, label: &OwnerLabel) -> Vec<u8> {
    let mut value = owner.to_value().to_vec();
    if !label.as_str().is_empty() {
        value.push(b' ');
        value.extend_from_slice(label.as_str().as_bytes());
    }
    value
}

pub(super) fn digits(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}
