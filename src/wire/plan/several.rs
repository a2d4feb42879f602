//! The commands of several locks that are taken together: all of them on a node, or none, by one owner with one token.
//!
//! Each key is that of a lock of its own, so they exclude, and are excluded by, whoever takes some of these locks otherwise.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::config::RESERVED;
use crate::ids::{OwnerLabel, OwnerToken};
use crate::wire::command::Command;
use crate::wire::keys::CANARY;
use crate::wire::plan::lock_keys::{KeyTtls, LockKeys, digits, value};
use crate::wire::plan::policy::{QueuePolicy, QueueUpdate, Waiter};
use crate::wire::script::Script;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Several {
    /// Sorted, and none of them twice.
    locks: Arc<[LockKeys]>,
    /// Stands for all of them together: in the queues of a manager, and in the notices that its calls get. No lock has it.
    pub(super) together: Arc<[u8]>,
    pub(super) ttls: KeyTtls,
    pub(super) label: OwnerLabel,
}

impl Several {
    /// `locks`: sorted, and none of them twice.
    pub(super) fn new(locks: impl Iterator<Item = Arc<[u8]>>, ttls: KeyTtls) -> Several {
        let locks: Arc<[LockKeys]> = locks.map(LockKeys::of).collect();
        // The same in all versions is not needed: it tells sets of names apart within one manager.
        let mut hasher = DefaultHasher::new();
        locks.iter().for_each(|it| it.lock.hash(&mut hasher));
        let together = [RESERVED, format!("many:{:016x}", hasher.finish()).as_bytes()].concat().into();
        Several { locks, together, ttls, label: OwnerLabel::default() }
    }

    /// The lock keys, in the order of the commands.
    pub(super) fn locks(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        self.locks.iter().map(|it| &it.lock)
    }

    fn value(&self, owner: OwnerToken) -> Vec<u8> {
        value(owner, &self.label)
    }

    /// What stands in a waiting list for the calls of a client for these locks: its other calls for one of them have entries
    /// of their own.
    fn member(&self, waiter: Waiter) -> Vec<u8> {
        [&waiter.client().to_value()[..], b"/", &self.together].concat()
    }

    /// The keys of all locks, kind by kind.
    fn keys<const N: usize>(&self, kinds: [fn(&LockKeys) -> &[u8]; N]) -> Vec<&[u8]> {
        kinds.iter().flat_map(|kind| self.locks.iter().map(kind)).collect()
    }

    pub(super) fn acquire(
        &self,
        owner: OwnerToken,
        ttl_ms: u64,
        proposal: u64,
        quarantine: u64,
        policy: &QueuePolicy,
    ) -> Command {
        let owner = self.value(owner);
        let (ttl, proposal) = (digits(ttl_ms), digits(proposal));
        let (fencing_ttl, quarantine) = (digits(self.ttls.fence), digits(quarantine));
        let mut keys = self.keys([LockKeys::lock, LockKeys::fence, LockKeys::reservation, LockKeys::waiters]);
        keys.push(CANARY);
        let way: &[u8] = if policy.fair { b"fair" } else { b"unfair" };
        let since = digits(policy.since);
        let client = policy.entry.map(|it| self.member(it.waiter)).unwrap_or_default();
        let life = policy.entry.filter(|_| policy.enters).map(|it| digits(it.life)).unwrap_or_default();
        let args: [&[u8]; 10] =
            [&owner, &ttl, &proposal, &fencing_ttl, &quarantine, way, &since, &client, &life, Command::IS_TOLD];
        let command = Command::of_script(Script::AcquireMany, &keys, &args).that_keeps_it_for(ttl_ms);
        if policy.entry.is_some() { command.that_waits() } else { command }
    }

    pub(super) fn raise(&self, owner: OwnerToken, token: u64) -> Command {
        let args = [&self.value(owner)[..], &digits(token), &digits(self.ttls.fence)];
        Command::of_script(Script::RaiseMany, &self.keys([LockKeys::lock, LockKeys::fence]), &args)
    }

    /// `more`: what to do besides, see `extend.lua`.
    pub(super) fn extend(
        &self,
        owner: OwnerToken,
        ttl_ms: u64,
        token: u64,
        quarantine: u64,
        more: Option<&str>,
    ) -> Command {
        let (owner, ttl, token) = (self.value(owner), digits(ttl_ms), digits(token));
        let (fencing_ttl, quarantine) = (digits(self.ttls.fence), digits(quarantine));
        let mut keys = self.keys([LockKeys::lock, LockKeys::fence]);
        keys.push(CANARY);
        let mut args: Vec<&[u8]> = vec![&owner, &ttl, &token, &fencing_ttl, &quarantine];
        args.extend(more.map(str::as_bytes));
        Command::of_script(Script::ExtendMany, &keys, &args).that_keeps_it_for(ttl_ms)
    }

    /// `raised`: the owner's fencing token, if its acquire has proposed another one to the nodes.
    pub(super) fn release(&self, owner: OwnerToken, raised: Option<u64>, update: QueueUpdate) -> Command {
        let (owner, token) = (self.value(owner), raised.map(digits).unwrap_or_default());
        let fencing_ttl = digits(self.ttls.fence);
        let keys = self.keys([LockKeys::lock, LockKeys::fence, LockKeys::reservation, LockKeys::waiters]);
        let always: [&[u8]; 3] = [&owner, &token, &fencing_ttl];
        let more = match update {
            QueueUpdate::None => vec![],
            QueueUpdate::Leave(waiter) => vec![self.member(waiter)],
            QueueUpdate::HandOver { waiter, since } => vec![self.member(waiter), digits(since)],
            QueueUpdate::Stay { entry, since, which } => {
                let number = digits(u64::from(which.unwrap_or(0)).saturating_add(1));
                let (member, life) = (self.member(entry.waiter), digits(entry.life));
                vec![member, digits(since), life, number, Command::IS_TOLD.to_vec()]
            }
        };
        let args: Vec<&[u8]> = always.into_iter().chain(more.iter().map(|it| &it[..])).collect();
        let command = Command::of_script(Script::ReleaseMany, &keys, &args);
        match update {
            QueueUpdate::None => command,
            QueueUpdate::Stay { .. } => command.that_waits(),
            // As for one lock.
            QueueUpdate::Leave(_) | QueueUpdate::HandOver { .. } => command.that_says_less_again(&keys, &always),
        }
    }
}
