//! The commands of a semaphore: as many slots as it has permits, each a lock of its own, with a fencing counter of its own, and
//! one waiting list for all of them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::config::RESERVED;
use crate::ids::{OwnerLabel, OwnerToken};
use crate::wire::command::Command;
use crate::wire::keys::{CANARY, beside};
use crate::wire::plan::lock_keys::{KeyTtls, digits, value};
use crate::wire::plan::policy::{QueuePolicy, QueueUpdate, Waiter};
use crate::wire::script::Script;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    /// Of the semaphore, with the manager's prefix. No key.
    pub(super) name: Arc<[u8]>,
    keys: Arc<Keys>,
    /// Stands for all of them: in the queues of a manager, and in the notices that its calls get. No lock has it.
    pub(super) together: Arc<[u8]>,
    /// The slot of a hold, from 0.
    pub(super) own: Option<u8>,
    pub(super) ttls: KeyTtls,
    pub(super) label: OwnerLabel,
}

#[derive(Debug)]
struct Keys {
    slots: Vec<Vec<u8>>,
    fences: Vec<Vec<u8>>,
    reservation: Vec<u8>,
    waiters: Vec<u8>,
}

impl Slots {
    pub(super) fn new(name: Arc<[u8]>, permits: usize, ttls: KeyTtls) -> Slots {
        let each = |kind: &str| (0..permits).map(|it| beside(&format!("{kind}-{it}"), &name)).collect();
        let [reservation, waiters] = ["slot-turn", "slot-waiters"].map(|it| beside(it, &name));
        let keys = Arc::new(Keys { slots: each("slot"), fences: each("slot-fence"), reservation, waiters });
        // Not of the number of permits: calls that say another number wait in the same list.
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let together = [RESERVED, format!("slots:{:016x}", hasher.finish()).as_bytes()].concat().into();
        Slots { name, keys, together, own: None, ttls, label: OwnerLabel::default() }
    }

    fn value(&self, owner: OwnerToken) -> Vec<u8> {
        value(owner, &self.label)
    }

    /// What stands in the waiting list for the calls of a client.
    fn member(&self, waiter: Waiter) -> Vec<u8> {
        [&waiter.client().to_value()[..], b"/", &self.together].concat()
    }

    /// The slot keys, the counters, the reservation and the list.
    fn keys(&self) -> Vec<&[u8]> {
        let Keys { slots, fences, reservation, waiters } = &*self.keys;
        slots.iter().chain(fences).chain([reservation, waiters]).map(|it| &it[..]).collect()
    }

    /// The key of the hold's slot, and its counter.
    fn own_keys(&self) -> [&[u8]; 2] {
        let own = usize::from(self.own.unwrap_or(0));
        [&self.keys.slots, &self.keys.fences].map(|it| it.get(own).map_or(&[][..], |it| it))
    }

    pub(super) fn acquire(
        &self,
        owner: OwnerToken,
        ttl_ms: u64,
        proposal: u64,
        quarantine: u64,
        policy: &QueuePolicy,
    ) -> Command {
        // The same for all nodes, and another one for each attempt.
        let permits = u64::try_from(self.keys.slots.len()).unwrap_or(u64::MAX).max(1);
        let first = policy.only.map_or(owner.number().checked_rem(permits).unwrap_or(0), u64::from).saturating_add(1);
        let (first, only): (_, &[u8]) = (digits(first), if policy.only.is_some() { b"1" } else { b"0" });
        let owner = self.value(owner);
        let (ttl, proposal) = (digits(ttl_ms), digits(proposal));
        let (fencing_ttl, quarantine) = (digits(self.ttls.fence), digits(quarantine));
        let mut keys = self.keys();
        keys.push(CANARY);
        let way: &[u8] = if policy.fair { b"fair" } else { b"unfair" };
        let since = digits(policy.since);
        let client = policy.entry.map(|it| self.member(it.waiter)).unwrap_or_default();
        let life = policy.entry.filter(|_| policy.enters).map(|it| digits(it.life)).unwrap_or_default();
        let args: [&[u8]; 12] = [
            &owner,
            &ttl,
            &proposal,
            &fencing_ttl,
            &quarantine,
            way,
            &since,
            &client,
            &life,
            &first,
            only,
            Command::IS_TOLD,
        ];
        let command = Command::of_script(Script::AcquireSlot, &keys, &args).that_keeps_it_for(ttl_ms);
        if policy.entry.is_some() { command.that_waits() } else { command }
    }

    pub(super) fn raise(&self, owner: OwnerToken, token: u64) -> Command {
        let args = [&self.value(owner)[..], &digits(token), &digits(self.ttls.fence)];
        Command::of_script(Script::Raise, &self.own_keys(), &args)
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
        let [slot, fence] = self.own_keys();
        Command::of_script(Script::Extend, &[slot, fence, CANARY], &args).that_keeps_it_for(ttl_ms)
    }

    /// `raised`: the owner's fencing token, if its acquire has proposed another one to the nodes.
    pub(super) fn release(&self, owner: OwnerToken, raised: Option<u64>, update: QueueUpdate) -> Command {
        self.give_back(owner, None, raised, update)
    }

    /// Gives back what nodes have granted besides the hold's slot.
    pub(super) fn keep(&self, owner: OwnerToken, waiter: Option<Waiter>) -> Command {
        self.give_back(owner, self.own, None, waiter.map_or(QueueUpdate::None, QueueUpdate::Leave))
    }

    fn give_back(&self, owner: OwnerToken, keep: Option<u8>, raised: Option<u64>, update: QueueUpdate) -> Command {
        let (owner, token) = (self.value(owner), raised.map(digits).unwrap_or_default());
        let keep = digits(keep.map_or(0, |it| u64::from(it).saturating_add(1)));
        let (keys, fencing_ttl) = (self.keys(), digits(self.ttls.fence));
        let always: [&[u8]; 4] = [&owner, &keep, &token, &fencing_ttl];
        let more = match update {
            QueueUpdate::None => vec![],
            QueueUpdate::Leave(waiter) => vec![self.member(waiter)],
            QueueUpdate::HandOver { waiter, since } => vec![self.member(waiter), digits(since)],
            QueueUpdate::Stay { entry, since, .. } => {
                vec![self.member(entry.waiter), digits(since), digits(entry.life), Command::IS_TOLD.to_vec()]
            }
        };
        let args: Vec<&[u8]> = always.into_iter().chain(more.iter().map(|it| &it[..])).collect();
        let command = Command::of_script(Script::ReleaseSlots, &keys, &args);
        match update {
            QueueUpdate::None => command,
            QueueUpdate::Stay { .. } => command.that_waits(),
            // As for one lock.
            QueueUpdate::Leave(_) | QueueUpdate::HandOver { .. } => command.that_says_less_again(&keys, &always),
        }
    }
}
