//! A reader's lock: the lock key is shared by all readers, and each has an entry of its own beside it.

use crate::ids::OwnerToken;
use crate::wire::keys::{LockKeys, RECORD, beside};
use crate::wire::plan::form::{Form, QueuePolicy, ScriptCall};
use crate::wire::script::Script;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct RwKeys {
    /// What the lock is to a writer.
    keys: LockKeys,
    readers: Vec<u8>,
}

impl RwKeys {
    pub(super) fn of(keys: LockKeys) -> RwKeys {
        let readers = beside("readers", &keys.lock);
        RwKeys { keys, readers }
    }
}

/// What is proposed is the value of a counter that is missing.
impl Form for RwKeys {
    fn acquire(&self, _owner: OwnerToken, _policy: &QueuePolicy) -> ScriptCall<'_> {
        let LockKeys {
            lock,
            fence,
            waiters,
            reservation,
        } = &self.keys;
        ScriptCall::new(
            Script::AcquireShared,
            [&**lock, fence, waiters, reservation, RECORD, &self.readers],
        )
    }

    fn raise(&self) -> ScriptCall<'_> {
        ScriptCall::new(
            Script::RaiseShared,
            [&*self.keys.lock, &self.keys.fence, &self.readers],
        )
    }

    fn extend(&self) -> ScriptCall<'_> {
        let LockKeys {
            lock,
            fence,
            waiters,
            reservation,
        } = &self.keys;
        ScriptCall::new(
            Script::ExtendShared,
            [&**lock, fence, RECORD, &self.readers, waiters, reservation],
        )
    }

    fn release(&self, _raised: Option<u64>, _fencing_ttl: u64) -> ScriptCall<'_> {
        let LockKeys {
            lock,
            waiters,
            reservation,
            ..
        } = &self.keys;
        ScriptCall::new(
            Script::ReleaseShared,
            [&**lock, waiters, reservation, &self.readers],
        )
    }
}
