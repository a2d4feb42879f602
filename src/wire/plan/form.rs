//! What a lock is on the nodes: which scripts its commands run, on which keys.
//!
//! The arguments are the same for all forms of locks, and `plan.rs` makes them; a form says what it adds. The clients that wait are
//! the same to all of them.

use std::fmt;
use std::sync::Arc;

use crate::answer::Which;
use crate::ids::{ClientId, OwnerToken};
use crate::wire::keys::{LockKeys, RECORD, digits};
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

/// How an acquire treats the clients that wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueuePolicy {
    /// When the call began: microseconds since 1970.
    pub(crate) since: u64,
    /// The entry in the waiting list, of a call that waits.
    pub(crate) entry: Option<QueueEntry>,
    /// Enter the waiting list if refused.
    pub(crate) enters: bool,
    /// Of a semaphore: this slot or none.
    pub(crate) only: Option<u8>,
}

impl QueuePolicy {
    /// Behind all clients that wait, and in no list.
    pub(crate) fn without_place(self) -> QueuePolicy {
        QueuePolicy {
            since: LAST,
            enters: false,
            ..self
        }
    }
}

/// When a call began that is behind all others.
pub(crate) const LAST: u64 = u64::MAX;

/// Who waits: a member of waiting lists.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Waiter {
    /// A client, for the call of its own that comes first.
    Client(ClientId),
    /// A call of a client that wants to read: several may at a time.
    Reader(ClientId, u64),
}

/// A waiter's entry in a waiting list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueueEntry {
    pub(crate) waiter: Waiter,
    /// Life of the list after it, in milliseconds.
    pub(crate) life: u64,
}

/// What a release changes in the waiting list, besides notifying the first client in it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum QueueUpdate {
    /// Nothing: it was never in it.
    None,
    /// It leaves the list.
    Leave(Waiter),
    /// A call that began at `since` goes on waiting, and enters the list: of several locks, that of the one that is in the
    /// way.
    Stay {
        entry: QueueEntry,
        since: u64,
        which: Which,
    },
    /// A call of the client that began at `since` comes next: its acquire follows on the same connection.
    HandOver { waiter: Waiter, since: u64 },
}

/// See the module. What most forms have in common is a default.
pub(super) trait Form: fmt::Debug + Send + Sync {
    /// The same for a hold of this slot; `None` where there are no slots.
    fn of_slot(&self, _slot: u8) -> Option<Arc<dyn Form>> {
        None
    }

    /// As [`release`](Form::release), of all slots but that of the hold; `None` where there are no slots.
    fn release_others(&self, _fencing_ttl: u64) -> Option<ScriptCall<'_>> {
        None
    }

    /// Adds what comes after the policy.
    fn acquire(&self, owner: OwnerToken, policy: &QueuePolicy) -> ScriptCall<'_>;

    fn raise(&self) -> ScriptCall<'_>;

    fn extend(&self) -> ScriptCall<'_>;

    /// Adds what comes behind the owner. `raised`: its fencing token, if its acquire has proposed another one to the nodes.
    /// `fencing_ttl`: the life of the counter.
    fn release(&self, raised: Option<u64>, fencing_ttl: u64) -> ScriptCall<'_>;
}

/// A lock that one holder at a time can have.
impl Form for LockKeys {
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

    fn release(&self, raised: Option<u64>, fencing_ttl: u64) -> ScriptCall<'_> {
        let fence = raised.is_some().then_some(&self.fence[..]);
        let keys = [&*self.lock, &self.waiters, &self.reservation]
            .into_iter()
            .chain(fence);
        ScriptCall::new(Script::Release, keys).with(
            raised
                .into_iter()
                .flat_map(|token| [token, fencing_ttl].map(digits)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_a_place_is_behind_all_others_and_enters_no_list() {
        let entry = Some(QueueEntry {
            waiter: Waiter::Client(ClientId::draw().unwrap()),
            life: 9,
        });
        let policy = QueuePolicy {
            since: 5,
            entry,
            enters: true,
            only: None,
        }
        .without_place();
        assert_eq!(
            policy,
            QueuePolicy {
                since: u64::MAX,
                entry,
                enters: false,
                only: None
            }
        );
    }
}
