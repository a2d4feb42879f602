//! The commands of a lock that one holder at a time can have.

use crate::ids::{OwnerLabel, OwnerToken};
use crate::wire::command::Command;
use crate::wire::keys::CANARY;
use crate::wire::plan::lock_keys::{KeyTtls, LockKeys, digits, value};
use crate::wire::plan::policy::{QueuePolicy, QueueUpdate};
use crate::wire::script::Script;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Exclusive {
    pub(super) keys: LockKeys,
    pub(super) ttls: KeyTtls,
    pub(super) label: OwnerLabel,
}

impl Exclusive {
    pub(super) fn value(&self, owner: OwnerToken) -> Vec<u8> {
        value(owner, &self.label)
    }

    /// `quarantine`: for how many milliseconds a node is quarantined that has lost its data; 0 for not at all.
    pub(super) fn acquire(
        &self,
        owner: OwnerToken,
        ttl_ms: u64,
        proposal: u64,
        quarantine: u64,
        policy: &QueuePolicy,
    ) -> Command {
        let LockKeys { lock, fence, waiters, reservation } = &self.keys;
        let args = self.acquire_args(owner, ttl_ms, proposal, quarantine);
        let keys: [&[u8]; 5] = [lock, fence, waiters, reservation, CANARY];
        policy.in_command(Script::Acquire, &keys, &args.each_ref().map(|it| &it[..])).that_keeps_it_for(ttl_ms)
    }

    pub(super) fn acquire_args(&self, owner: OwnerToken, ttl_ms: u64, proposal: u64, quarantine: u64) -> [Vec<u8>; 5] {
        let numbers = [ttl_ms, proposal, self.ttls.fence, quarantine].map(digits);
        let [ttl, proposal, fencing_ttl, quarantine] = numbers;
        [self.value(owner), ttl, proposal, fencing_ttl, quarantine]
    }

    pub(super) fn raise(&self, owner: OwnerToken, token: u64) -> Command {
        let args = [&self.value(owner)[..], &digits(token), &digits(self.ttls.fence)];
        Command::of_script(Script::Raise, &[&self.keys.lock, &self.keys.fence], &args)
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
        let keys: [&[u8]; 3] = [&self.keys.lock, &self.keys.fence, CANARY];
        self.extend_with(Script::Extend, &keys, [ttl_ms, token, quarantine], owner, more)
    }

    pub(super) fn extend_with(
        &self,
        script: Script,
        keys: &[&[u8]],
        [ttl_ms, token, quarantine]: [u64; 3],
        owner: OwnerToken,
        more: Option<&str>,
    ) -> Command {
        let (owner, ttl, token) = (self.value(owner), digits(ttl_ms), digits(token));
        let (fencing_ttl, quarantine) = (digits(self.ttls.fence), digits(quarantine));
        let mut args: Vec<&[u8]> = vec![&owner, &ttl, &token, &fencing_ttl, &quarantine];
        args.extend(more.map(str::as_bytes));
        Command::of_script(script, keys, &args).that_keeps_it_for(ttl_ms)
    }

    /// `raised`: the owner's fencing token, if its acquire has proposed another one to the nodes.
    pub(super) fn release(&self, owner: OwnerToken, raised: Option<u64>, update: QueueUpdate) -> Command {
        let owner = self.value(owner);
        let (token, fencing_ttl) = (raised.map(digits), digits(self.ttls.fence));
        let mut keys: Vec<&[u8]> = vec![&self.keys.lock, &self.keys.waiters, &self.keys.reservation];
        let mut always: Vec<&[u8]> = vec![&owner];
        if let Some(token) = &token {
            keys.push(&self.keys.fence);
            always.extend([&token[..], &fencing_ttl]);
        }
        update.in_command(Script::Release, &keys, &always)
    }
}
