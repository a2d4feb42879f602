//! Several locks that are taken together: all of them on a node, or none, by one owner with one token.
//!
//! Each key is that of a lock of its own, so they exclude, and are excluded by, whoever takes some of these locks otherwise.

use std::sync::Arc;

use crate::ids::OwnerToken;
use crate::wire::keys::RECORD;
use crate::wire::plan::form::{Form, ScriptCall};
use crate::wire::plan::lock_keys::{LockKeys, together};
use crate::wire::plan::policy::{QueuePolicy, Waiter};
use crate::wire::script::Script;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Several {
    /// Sorted, and none of them twice.
    locks: Arc<[LockKeys]>,
    together: Arc<[u8]>,
}

impl Several {
    /// `locks`: sorted, and none of them twice.
    pub(super) fn new(locks: impl Iterator<Item = Arc<[u8]>>) -> Several {
        let locks: Arc<[LockKeys]> = locks.map(LockKeys::of).collect();
        let together = together("many", locks.iter().map(|it| &*it.lock));
        Several { locks, together }
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
    fn key(&self) -> &Arc<[u8]> {
        &self.together
    }

    fn names(&self) -> Vec<&[u8]> {
        self.keys([LockKeys::lock]).collect()
    }

    /// Its other calls for one of these locks have entries of their own.
    fn member(&self, waiter: Waiter) -> Vec<u8> {
        waiter.to_value_for(&self.together)
    }

    fn parts(&self) -> &[LockKeys] {
        &self.locks
    }

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

    fn release(&self, raised: Option<Vec<u8>>, fencing_ttl: Vec<u8>) -> ScriptCall<'_> {
        let keys = self.keys([
            LockKeys::lock,
            LockKeys::fence,
            LockKeys::reservation,
            LockKeys::waiters,
        ]);
        ScriptCall::new(Script::ReleaseMany, keys).with([raised.unwrap_or_default(), fencing_ttl])
    }
}
