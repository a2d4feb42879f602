//! The commands of a reader: the lock key is shared by all readers, and each has an entry of its own beside it.

use crate::ids::OwnerToken;
use crate::wire::command::Command;
use crate::wire::keys::{CANARY, beside};
use crate::wire::plan::exclusive::Exclusive;
use crate::wire::plan::lock_keys::{LockKeys, digits};
use crate::wire::plan::policy::{QueuePolicy, QueueUpdate};
use crate::wire::script::Script;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    /// What the lock is to a writer.
    pub(super) writer: Exclusive,
    readers: Vec<u8>,
}

impl Shared {
    pub(super) fn of(writer: Exclusive) -> Shared {
        let readers = beside("readers", &writer.keys.lock);
        Shared { writer, readers }
    }

    /// `proposal`: the value of a counter that is missing.
    pub(super) fn acquire(
        &self,
        owner: OwnerToken,
        ttl_ms: u64,
        proposal: u64,
        quarantine: u64,
        policy: &QueuePolicy,
    ) -> Command {
        let LockKeys { lock, fence, waiters, reservation } = &self.writer.keys;
        let args = self.writer.acquire_args(owner, ttl_ms, proposal, quarantine);
        let keys: [&[u8]; 6] = [lock, fence, waiters, reservation, CANARY, &self.readers];
        policy.in_command(Script::AcquireShared, &keys, &args.each_ref().map(|it| &it[..])).that_keeps_it_for(ttl_ms)
    }

    pub(super) fn raise(&self, owner: OwnerToken, token: u64) -> Command {
        let keys: [&[u8]; 3] = [&self.writer.keys.lock, &self.writer.keys.fence, &self.readers];
        let args = [&self.writer.value(owner)[..], &digits(token), &digits(self.writer.ttls.fence)];
        Command::of_script(Script::RaiseShared, &keys, &args)
    }

    pub(super) fn extend(
        &self,
        owner: OwnerToken,
        ttl_ms: u64,
        token: u64,
        quarantine: u64,
        more: Option<&str>,
    ) -> Command {
        let LockKeys { lock, fence, waiters, reservation } = &self.writer.keys;
        let keys: [&[u8]; 6] = [lock, fence, CANARY, &self.readers, waiters, reservation];
        self.writer.extend_with(Script::ExtendShared, &keys, [ttl_ms, token, quarantine], owner, more)
    }

    pub(super) fn release(&self, owner: OwnerToken, update: QueueUpdate) -> Command {
        let LockKeys { lock, waiters, reservation, .. } = &self.writer.keys;
        let keys: [&[u8]; 4] = [lock, waiters, reservation, &self.readers];
        update.in_command(Script::ReleaseShared, &keys, &[&self.writer.value(owner)])
    }
}
