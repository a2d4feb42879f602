//! The commands of a lock that one holder at a time can have.

use crate::ids::{ClientId, OwnerLabel, OwnerToken};
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
    fn value(&self, owner: OwnerToken) -> Vec<u8> {
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
        let owner = self.value(owner);
        let (ttl, proposal) = (digits(ttl_ms), digits(proposal));
        let (fencing_ttl, quarantine) = (digits(self.ttls.fence), digits(quarantine));
        let keys: [&[u8]; 5] = [&self.keys.lock, &self.keys.fence, &self.keys.waiters, &self.keys.reservation, CANARY];
        let way: &[u8] = if policy.fair { b"fair" } else { b"unfair" };
        let since = digits(policy.since);
        let client = policy.entry.map(|it| it.client.to_value());
        let client = client.as_ref().map_or(&[][..], |it| it);
        let life = policy.entry.filter(|_| policy.enters).map(|it| digits(it.life)).unwrap_or_default();
        let args: [&[u8]; 10] =
            [&owner, &ttl, &proposal, &fencing_ttl, &quarantine, way, &since, client, &life, Command::IS_TOLD];
        let command = Command::of_script(Script::Acquire, &keys, &args).that_keeps_it_for(ttl_ms);
        if policy.entry.is_some() { command.that_waits() } else { command }
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
        let (owner, ttl, token) = (self.value(owner), digits(ttl_ms), digits(token));
        let (fencing_ttl, quarantine) = (digits(self.ttls.fence), digits(quarantine));
        let mut args: Vec<&[u8]> = vec![&owner, &ttl, &token, &fencing_ttl, &quarantine];
        args.extend(more.map(str::as_bytes));
        Command::of_script(Script::Extend, &[&self.keys.lock, &self.keys.fence, CANARY], &args)
            .that_keeps_it_for(ttl_ms)
    }

    /// `raised`: the owner's fencing token, if its acquire has proposed another one to the nodes.
    pub(super) fn release(&self, owner: OwnerToken, raised: Option<u64>, update: QueueUpdate) -> Command {
        let owner = self.value(owner);
        let (token, fencing_ttl) = (raised.map(digits), digits(self.ttls.fence));
        let (client, since, life) = match update {
            QueueUpdate::None => (None, None, None),
            QueueUpdate::Leave(client) => (Some(client), None, None),
            QueueUpdate::HandOver { client, since } => (Some(client), Some(since), None),
            QueueUpdate::Stay { entry, since, .. } => (Some(entry.client), Some(since), Some(entry.life)),
        };
        let (client, since, life) = (client.map(ClientId::to_value), since.map(digits), life.map(digits));
        let mut keys: Vec<&[u8]> = vec![&self.keys.lock, &self.keys.waiters, &self.keys.reservation];
        let mut always: Vec<&[u8]> = vec![&owner];
        if let Some(token) = &token {
            keys.push(&self.keys.fence);
            always.extend([&token[..], &fencing_ttl]);
        }
        let mut args = always.clone();
        args.extend(client.as_ref().map(|it| &it[..]));
        args.extend(since.as_deref());
        args.extend(life.as_deref());
        if life.is_some() {
            args.push(Command::IS_TOLD);
        }
        let command = Command::of_script(Script::Release, &keys, &args);
        match update {
            QueueUpdate::None => command,
            QueueUpdate::Stay { .. } => command.that_waits(),
            // Sent again after the acquire of the next call, its update would be wrong: it would remove that call from the
            // list, or notify no client because that call was about to ask.
            QueueUpdate::Leave(_) | QueueUpdate::HandOver { .. } => command.that_says_less_again(&keys, &always),
        }
    }
}
