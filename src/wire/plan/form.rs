//! What a lock is on the nodes: which scripts its commands run, on which keys.
//!
//! The arguments are the same for all forms of locks, and `plan.rs` makes them; a form says what it adds.

use std::sync::Arc;

use crate::ids::OwnerToken;
use crate::wire::keys::CANARY;
use crate::wire::plan::lock_keys::LockKeys;
use crate::wire::plan::policy::{QueuePolicy, Waiter};
use crate::wire::script::Script;

/// A script, its keys, and the arguments that a form adds.
pub(super) struct Call<'a> {
    pub(super) script: Script,
    pub(super) keys: Vec<&'a [u8]>,
    pub(super) more: Vec<Vec<u8>>,
}

impl<'a> Call<'a> {
    pub(super) fn new(script: Script, keys: impl IntoIterator<Item = &'a [u8]>) -> Call<'a> {
        Call { script, keys: keys.into_iter().collect(), more: Vec::new() }
    }

    pub(super) fn with(self, more: impl IntoIterator<Item = Vec<u8>>) -> Call<'a> {
        Call { more: more.into_iter().collect(), ..self }
    }
}

/// See the module.
pub(super) trait Form {
    /// What tells the locks of a manager apart: the lock key, or what stands for several of them.
    fn key(&self) -> &Arc<[u8]>;

    /// The names, with the manager's prefix.
    fn names(&self) -> Vec<&[u8]> {
        vec![self.key()]
    }

    /// What stands in a waiting list for `waiter`.
    fn member(&self, waiter: Waiter) -> Vec<u8> {
        waiter.to_value()
    }

    /// Whether a call that stays in a list says in which: a release has the lists of several locks.
    fn has_several_lists(&self) -> bool {
        false
    }

    /// Adds what comes after the policy.
    fn acquire(&self, owner: OwnerToken, policy: &QueuePolicy) -> Call<'_>;

    fn raise(&self) -> Call<'_>;

    fn extend(&self) -> Call<'_>;

    /// Adds what comes behind the owner. `raised`: its fencing token, if its acquire has proposed another one to the nodes.
    /// `fencing_ttl`: the life of the counter.
    fn release(&self, raised: Option<Vec<u8>>, fencing_ttl: Vec<u8>) -> Call<'_>;
}

/// A lock that one holder at a time can have.
impl Form for LockKeys {
    fn key(&self) -> &Arc<[u8]> {
        &self.lock
    }

    fn acquire(&self, _owner: OwnerToken, _policy: &QueuePolicy) -> Call<'_> {
        Call::new(Script::Acquire, [&*self.lock, &self.fence, &self.waiters, &self.reservation, CANARY])
    }

    fn raise(&self) -> Call<'_> {
        Call::new(Script::Raise, [&*self.lock, &self.fence])
    }

    fn extend(&self) -> Call<'_> {
        Call::new(Script::Extend, [&*self.lock, &self.fence, CANARY])
    }

    fn release(&self, raised: Option<Vec<u8>>, fencing_ttl: Vec<u8>) -> Call<'_> {
        let fence = raised.is_some().then_some(&self.fence[..]);
        let keys = [&*self.lock, &self.waiters, &self.reservation].into_iter().chain(fence);
        Call::new(Script::Release, keys).with(raised.map(|it| [it, fencing_ttl]).into_iter().flatten())
    }
}
