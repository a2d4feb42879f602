//! Several locks that are taken together: all of them on a node, or none, by one owner with one token.
//!
//! Each key is that of a lock of its own, so they exclude, and are excluded by, whoever takes some of these locks otherwise.

use std::sync::Arc;

use crate::ids::OwnerToken;
use crate::wire::keys::{LockKeys, RECORD, digits};
use crate::wire::plan::form::{Form, QueuePolicy, ScriptCall};
use crate::wire::script::Script;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Several {
    /// Sorted, and none of them twice.
    locks: Arc<[LockKeys]>,
}

impl Several {
    /// `locks`: sorted, and none of them twice.
    pub(super) fn new(locks: &[Arc<[u8]>]) -> Several {
        Several {
            locks: locks.iter().cloned().map(LockKeys::of).collect(),
        }
    }

    /// The keys of all locks, kind by kind.
    fn keys<const N: usize>(
        &self,
        kinds: [fn(&LockKeys) -> &[u8]; N],
    ) -> impl Iterator<Item = &[u8]> {
        kinds
            .into_iter()
            .flat_map(|kind| self.locks.iter().map(kind))
    }
}

impl Form for Several {
    fn acquire(&self, _owner: OwnerToken, _policy: &QueuePolicy) -> ScriptCall<'_> {
        let keys = self.keys([
            LockKeys::lock,
            LockKeys::fence,
            LockKeys::reservation,
            LockKeys::waiters,
        ]);
        ScriptCall::new(Script::AcquireMany, keys.chain([RECORD]))
    }

    fn raise(&self) -> ScriptCall<'_> {
        ScriptCall::new(Script::Raise, self.keys([LockKeys::lock, LockKeys::fence]))
    }

    fn extend(&self) -> ScriptCall<'_> {
        ScriptCall::new(
            Script::Extend,
            self.keys([LockKeys::lock, LockKeys::fence]).chain([RECORD]),
        )
    }

    fn release(&self, raised: Option<u64>, fencing_ttl: u64) -> ScriptCall<'_> {
        let keys = self.keys([
            LockKeys::lock,
            LockKeys::fence,
            LockKeys::reservation,
            LockKeys::waiters,
        ]);
        ScriptCall::new(Script::ReleaseMany, keys)
            .with([raised.map(digits).unwrap_or_default(), digits(fencing_ttl)])
    }
}
