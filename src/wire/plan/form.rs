//! What a lock is on the nodes: which scripts its commands run, on which keys.
//!
//! The arguments are the same for all forms of locks, and `plan.rs` makes them; a form says what it adds.

use std::fmt;
use std::sync::Arc;

use crate::ids::OwnerToken;
use crate::wire::keys::RECORD;
use crate::wire::plan::lock_keys::LockKeys;
use crate::wire::plan::policy::{QueuePolicy, Waiter};
use crate::wire::script::Script;

/// A script, its keys, and the arguments that a form adds.
pub(super) struct ScriptCall<'a> {
    pub(super) script: Script,
    pub(super) keys: Vec<&'a [u8]>,
    pub(super) more: Vec<Vec<u8>>,
}

impl<'a> ScriptCall<'a> {
    pub(super) fn new(script: Script, keys: impl IntoIterator<Item = &'a [u8]>) -> ScriptCall<'a> {
        ScriptCall {
            script,
            keys: keys.into_iter().collect(),
            more: Vec::new(),
        }
    }

    pub(super) fn with(self, more: impl IntoIterator<Item = Vec<u8>>) -> ScriptCall<'a> {
        ScriptCall {
            more: more.into_iter().collect(),
            ..self
        }
    }
}

/// See the module. What most forms have in common is a default.
pub(super) trait Form: fmt::Debug + Send + Sync {
    /// What tells the locks of a manager apart: the lock key, or what stands for several of them.
    fn key(&self) -> &Arc<[u8]>;

    /// The names, with the manager's prefix.
    fn names(&self) -> Vec<&[u8]> {
        vec![self.key()]
    }

    /// Of a lock that has several names, the keys of each. A release has the lists of all of them, so a call that stays in one
    /// says in which.
    fn parts(&self) -> &[LockKeys] {
        &[]
    }

    /// Whether several readers may hold it at a time.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether calls of the manager wait while it is noted that the manager holds it.
    fn is_noted(&self) -> bool {
        true
    }

    /// The slot of a hold, of a semaphore.
    fn slot(&self) -> Option<u8> {
        None
    }

    /// The same for a hold of this slot; `None` where there are no slots.
    fn of_slot(&self, _slot: u8) -> Option<Arc<dyn Form>> {
        None
    }

    /// As [`release`](Form::release), of all slots but that of the hold; `None` where there are no slots.
    fn release_others(&self, _fencing_ttl: Vec<u8>) -> Option<ScriptCall<'_>> {
        None
    }

    /// What stands in a waiting list for `waiter`.
    fn member(&self, waiter: Waiter) -> Vec<u8> {
        waiter.to_value()
    }

    /// Adds what comes after the policy.
    fn acquire(&self, owner: OwnerToken, policy: &QueuePolicy) -> ScriptCall<'_>;

    fn raise(&self) -> ScriptCall<'_>;

    fn extend(&self) -> ScriptCall<'_>;

    /// Adds what comes behind the owner. `raised`: its fencing token, if its acquire has proposed another one to the nodes.
    /// `fencing_ttl`: the life of the counter.
    fn release(&self, raised: Option<Vec<u8>>, fencing_ttl: Vec<u8>) -> ScriptCall<'_>;
}

/// A lock that one holder at a time can have.
impl Form for LockKeys {
    fn key(&self) -> &Arc<[u8]> {
        &self.lock
    }

    fn acquire(&self, _owner: OwnerToken, _policy: &QueuePolicy) -> ScriptCall<'_> {
        ScriptCall::new(
            Script::Acquire,
            [
                &*self.lock,
                &self.fence,
                &self.waiters,
                &self.reservation,
                RECORD,
            ],
        )
    }

    fn raise(&self) -> ScriptCall<'_> {
        ScriptCall::new(Script::Raise, [&*self.lock, &self.fence])
    }

    fn extend(&self) -> ScriptCall<'_> {
        ScriptCall::new(Script::Extend, [&*self.lock, &self.fence, RECORD])
    }

    fn release(&self, raised: Option<Vec<u8>>, fencing_ttl: Vec<u8>) -> ScriptCall<'_> {
        let fence = raised.is_some().then_some(&self.fence[..]);
        let keys = [&*self.lock, &self.waiters, &self.reservation]
            .into_iter()
            .chain(fence);
        ScriptCall::new(Script::Release, keys)
            .with(raised.map(|it| [it, fencing_ttl]).into_iter().flatten())
    }
}
