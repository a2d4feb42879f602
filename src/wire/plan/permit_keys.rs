//! A semaphore: as many slots as it has permits, each a lock of its own, with a fencing counter of its own, and one waiting
//! list for all of them.

use std::sync::Arc;

use crate::ids::OwnerToken;
use crate::wire::keys::{RECORD, beside, digits};
use crate::wire::plan::form::{Form, QueuePolicy, ScriptCall};
use crate::wire::script::Script;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct PermitKeys {
    keys: Arc<Keys>,
    /// The slot of a hold, from 0.
    own: Option<u8>,
}

#[derive(Debug)]
struct Keys {
    slots: Vec<Vec<u8>>,
    fences: Vec<Vec<u8>>,
    reservation: Vec<u8>,
    waiters: Vec<u8>,
}

impl PermitKeys {
    pub(super) fn new(name: &[u8], permits: usize) -> PermitKeys {
        let each = |kind: &str| {
            (0..permits)
                .map(|it| beside(&format!("{kind}-{it}"), name))
                .collect()
        };
        let [reservation, waiters] = ["slot-turn", "slot-waiters"].map(|it| beside(it, name));
        let keys = Arc::new(Keys {
            slots: each("slot"),
            fences: each("slot-fence"),
            reservation,
            waiters,
        });
        PermitKeys { keys, own: None }
    }

    /// The slot keys, the counters, the reservation and the list.
    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let Keys {
            slots,
            fences,
            reservation,
            waiters,
        } = &*self.keys;
        slots
            .iter()
            .chain(fences)
            .chain([reservation, waiters])
            .map(|it| &it[..])
    }

    /// The key of the hold's slot, and its counter.
    fn own_keys(&self) -> [&[u8]; 2] {
        let own = usize::from(self.own.unwrap_or(0));
        [&self.keys.slots, &self.keys.fences].map(|it| it.get(own).map_or(&[][..], |it| it))
    }

    /// As [`Form::release`], of all slots but `keep`.
    fn give_back(&self, keep: Option<u8>, raised: Option<u64>, fencing_ttl: u64) -> ScriptCall<'_> {
        let keep = digits(keep.map_or(0, |it| u64::from(it).saturating_add(1)));
        ScriptCall::new(Script::ReleaseSlots, self.keys()).with([
            keep,
            raised.map(digits).unwrap_or_default(),
            digits(fencing_ttl),
        ])
    }
}

impl Form for PermitKeys {
    fn of_slot(&self, slot: u8) -> Option<Arc<dyn Form>> {
        Some(Arc::new(PermitKeys {
            own: Some(slot),
            ..self.clone()
        }))
    }

    fn release_others(&self, fencing_ttl: u64) -> Option<ScriptCall<'_>> {
        Some(self.give_back(self.own, None, fencing_ttl))
    }

    fn acquire(&self, owner: OwnerToken, policy: &QueuePolicy) -> ScriptCall<'_> {
        // The same for all nodes, and another one for each attempt.
        let permits = u64::try_from(self.keys.slots.len())
            .unwrap_or(u64::MAX)
            .max(1);
        let first = policy
            .only
            .map_or(owner.number().checked_rem(permits).unwrap_or(0), u64::from)
            .saturating_add(1);
        let only = u64::from(policy.only.is_some());
        ScriptCall::new(Script::AcquireSlot, self.keys().chain([RECORD]))
            .with([first, only].map(digits))
    }

    fn raise(&self) -> ScriptCall<'_> {
        ScriptCall::new(Script::Raise, self.own_keys())
    }

    fn extend(&self) -> ScriptCall<'_> {
        ScriptCall::new(Script::Extend, self.own_keys().into_iter().chain([RECORD]))
    }

    fn release(&self, raised: Option<u64>, fencing_ttl: u64) -> ScriptCall<'_> {
        self.give_back(None, raised, fencing_ttl)
    }
}
