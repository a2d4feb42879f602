//! The keys of one lock and the commands on them.
//!
//! The lock key is exactly the name, with the manager's prefix: so every client of the plain Redlock layout on the
//! same nodes excludes us, and we it. Keys of ours beside it begin with `quorlock:` and the kind, *before* the name,
//! so that no two names can meet: a name with a suffix could be another name. See `wire::keys`.

mod exclusive;
mod lock_keys;
mod policy;
mod several;

use std::sync::Arc;

use crate::config::RESERVED;
use crate::ids::{ClientId, OwnerLabel, OwnerToken};
use crate::wire::command::Command;
use crate::wire::keys::CANARY;
use crate::wire::plan::exclusive::Exclusive;
use crate::wire::plan::lock_keys::{LockKeys, digits};
use crate::wire::plan::several::Several;
use crate::wire::script::Script;

pub(crate) use lock_keys::KeyTtls;
pub(crate) use policy::{LAST, QueueEntry, QueuePolicy, QueueUpdate};

/// The key that says which node it is, and which sets of nodes its clients use: `scripts/meet.lua`.
const SET: &[u8] = b"quorlock:set";

/// What the rounds of one lock send: the commands of a lock kind, as data.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    form: Form,
}

/// What a lock is on the nodes. Each has commands of its own.
#[derive(Clone, Debug)]
enum Form {
    Exclusive(Exclusive),
    Several(Several),
}

impl Plan {
    /// A mutex called `name`.
    pub(crate) fn mutex(prefix: &[u8], name: &[u8], ttls: KeyTtls) -> Plan {
        Plan::of_key([prefix, name].concat().into(), ttls)
    }

    /// Several locks that are taken together; `names`: sorted, and none of them twice.
    pub(crate) fn several<'a>(prefix: &[u8], names: impl Iterator<Item = &'a [u8]>, ttls: KeyTtls) -> Plan {
        let locks = names.map(|it| [prefix, it].concat().into());
        Plan { form: Form::Several(Several::new(locks, ttls)) }
    }

    fn of_key(lock: Arc<[u8]>, ttls: KeyTtls) -> Plan {
        let form = Exclusive { keys: LockKeys::of(lock), ttls, label: OwnerLabel::default() };
        Plan { form: Form::Exclusive(form) }
    }

    /// Writes `label` behind the owner token, in the value of the lock.
    pub(crate) fn signed(mut self, label: &OwnerLabel) -> Plan {
        match &mut self.form {
            Form::Exclusive(it) => it.label = label.clone(),
            Form::Several(it) => it.label = label.clone(),
        }
        self
    }

    /// Takes `client` off the waiting list of the lock whose key is `lock`; `None` for what no lock can be called: that is
    /// told to calls for several locks, which leave their lists themselves.
    pub(crate) fn leave_key(lock: &[u8], client: ClientId) -> Option<Command> {
        let plan = Plan::of_key(lock.into(), KeyTtls::default());
        (!plan.is_reserved()).then(|| plan.leave(client))
    }

    /// Takes `client` off the waiting lists.
    pub(crate) fn leave(&self, client: ClientId) -> Command {
        self.release(OwnerToken::nobody(), None, QueueUpdate::Leave(client))
    }

    /// What tells the locks of a manager apart: the lock key, or what stands for several of them.
    pub(crate) fn key(&self) -> &Arc<[u8]> {
        match &self.form {
            Form::Exclusive(it) => &it.keys.lock,
            Form::Several(it) => &it.together,
        }
    }

    /// Length of the lock keys, in bytes.
    pub(crate) fn key_len(&self) -> usize {
        match &self.form {
            Form::Exclusive(it) => it.keys.lock.len(),
            Form::Several(it) => it.locks().map(|it| it.len()).fold(0, usize::saturating_add),
        }
    }

    /// Whether a lock key looks like one of the keys that are kept beside locks.
    pub(crate) fn is_reserved(&self) -> bool {
        match &self.form {
            Form::Exclusive(it) => it.keys.lock.starts_with(RESERVED),
            Form::Several(it) => it.locks().any(|it| it.starts_with(RESERVED)),
        }
    }

    /// `quarantine`: for how many milliseconds a node is quarantined that has lost its data; 0 for not at all.
    pub(crate) fn acquire(
        &self,
        owner: OwnerToken,
        ttl_ms: u64,
        proposal: u64,
        quarantine: u64,
        policy: &QueuePolicy,
    ) -> Command {
        match &self.form {
            Form::Exclusive(it) => it.acquire(owner, ttl_ms, proposal, quarantine, policy),
            Form::Several(it) => it.acquire(owner, ttl_ms, proposal, quarantine, policy),
        }
    }

    pub(crate) fn raise(&self, owner: OwnerToken, token: u64) -> Command {
        match &self.form {
            Form::Exclusive(it) => it.raise(owner, token),
            Form::Several(it) => it.raise(owner, token),
        }
    }

    /// `keep`: the counter gets its full life again.
    pub(crate) fn extend(&self, owner: OwnerToken, ttl_ms: u64, token: u64, quarantine: u64, keep: bool) -> Command {
        self.extend_or_heal(owner, ttl_ms, token, quarantine, keep.then_some("keep"))
    }

    /// Sets the lock again where it is gone. Only for an owner who has just been confirmed by a majority.
    pub(crate) fn heal(&self, owner: OwnerToken, ttl_ms: u64, token: u64, quarantine: u64) -> Command {
        self.extend_or_heal(owner, ttl_ms, token, quarantine, Some("heal"))
    }

    fn extend_or_heal(
        &self,
        owner: OwnerToken,
        ttl_ms: u64,
        token: u64,
        quarantine: u64,
        more: Option<&str>,
    ) -> Command {
        match &self.form {
            Form::Exclusive(it) => it.extend(owner, ttl_ms, token, quarantine, more),
            Form::Several(it) => it.extend(owner, ttl_ms, token, quarantine, more),
        }
    }

    /// `raised`: the owner's fencing token, if its acquire has proposed another one to the nodes.
    pub(crate) fn release(&self, owner: OwnerToken, raised: Option<u64>, update: QueueUpdate) -> Command {
        match &self.form {
            Form::Exclusive(it) => it.release(owner, raised, update),
            Form::Several(it) => it.release(owner, raised, update),
        }
    }
}

/// Tells a node that we need a quarantine of `own` milliseconds if it loses its data, and that another node has told us of
/// one of `heard` milliseconds, last asked for on `heard_on`, in days since 1970. Asks since when the node has kept its data.
pub(crate) fn greet(own: u64, heard: u64, heard_on: u64) -> Command {
    Command::of_script(Script::Greet, &[CANARY], &[&digits(own), &digits(heard), &digits(heard_on)])
}

/// Tells a node that has never been used for locks, as far as it knows, that it has lost nothing.
pub(crate) fn vouch() -> Command {
    Command::of_script(Script::Greet, &[CANARY], &[b"0", b"0", b"0", b"vouch"])
}

/// Asks a node for its id, and gives it `id` if it has none. Notes there the fingerprint `set` of our `nodes`, in place of
/// the `earlier` ones.
pub(crate) fn meet(id: u64, set: Option<u64>, nodes: u64, earlier: &[u64]) -> Command {
    let hex = |it: u64| format!("{it:016x}");
    let earlier: Vec<_> = earlier.iter().copied().map(hex).collect();
    let (set, earlier) = (set.map(hex).unwrap_or_default(), earlier.join(" "));
    Command::of_script(Script::Meet, &[SET], &[&digits(id), set.as_bytes(), &digits(nodes), earlier.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_key_is_the_name_and_keys_beside_it_put_the_kind_first() {
        let plan = Plan::mutex(b"app:", b"report", KeyTtls::default());
        assert_eq!(**plan.key(), *b"app:report");
        let Form::Exclusive(form) = &plan.form else { panic!("another form") };
        assert_eq!(form.keys.fence, b"quorlock:fence:{app:report}");
    }

    #[test]
    fn numbers_are_sent_as_decimal_digits_in_the_order_that_the_script_states() {
        let (owner, ttls) = (OwnerToken::nobody(), KeyTtls { fence: 604_800_000 });
        let plan = Plan::mutex(b"app:", b"report", ttls);
        assert_eq!(plan.key_len(), 10);
        let (value, fence) = (owner.to_value(), b"quorlock:fence:{app:report}");
        let (keys, args): ([&[u8]; 2], [&[u8]; 3]) =
            ([b"app:report", fence], [&value, b"1700000000000001", b"604800000"]);
        let (mut sent, mut expected) = (Vec::new(), Vec::new());
        plan.raise(owner, 1_700_000_000_000_001).write_to(&mut sent, true);
        Command::of_script(Script::Raise, &keys, &args).write_to(&mut expected, true);
        assert_eq!(sent.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn reserved_names_are_recognised_with_their_prefix() {
        assert!(Plan::mutex(b"", b"quorlock:fence:{a}", KeyTtls::default()).is_reserved());
        assert!(Plan::mutex(b"quor", b"lock:x", KeyTtls::default()).is_reserved());
        assert!(!Plan::mutex(b"app:", b"quorlock:x", KeyTtls::default()).is_reserved());
    }

    #[test]
    fn every_command_of_a_hold_has_the_same_value_with_the_label_behind_the_token() {
        let label = OwnerLabel::new("web-3", 4711, "nightly");
        let plan = Plan::mutex(b"", b"a", KeyTtls::default());
        let owner = OwnerToken::draw().unwrap();
        let token = String::from_utf8(owner.to_value().to_vec()).unwrap();
        let policy = QueuePolicy { fair: true, since: 1, entry: None, enters: false };
        for (plan, value) in
            [(plan.clone().signed(&label), format!("{token} web-3/4711/nightly")), (plan, token.clone())]
        {
            for command in [
                plan.acquire(owner, 1, 1, 0, &policy),
                plan.raise(owner, 1),
                plan.extend(owner, 1, 1, 0, true),
                plan.heal(owner, 1, 1, 0),
                plan.release(owner, None, QueueUpdate::None),
            ] {
                let (mut bytes, argument) = (Vec::new(), format!("\r\n${}\r\n{value}\r\n", value.len()));
                command.write_to(&mut bytes, true);
                let found = bytes.windows(argument.len()).filter(|it| *it == argument.as_bytes()).count();
                assert_eq!(found, 1, "{}", bytes.escape_ascii());
            }
        }
    }

    #[test]
    fn every_command_says_for_how_long_its_lock_can_live() {
        let (plan, owner) = (Plan::mutex(b"", b"a", KeyTtls::default()), OwnerToken::nobody());
        let entry = QueueEntry { client: ClientId::draw().unwrap(), life: 9_999 };
        for (fair, entry) in [(true, None), (false, None), (true, Some(entry))] {
            let policy = QueuePolicy { fair, since: 1, entry, enters: entry.is_some() };
            assert_eq!(plan.acquire(owner, 1_500, 1, 0, &policy).life().as_millis(), 1_500);
        }
        for command in [plan.extend(owner, 1_500, 1, 0, true), plan.heal(owner, 1_500, 1, 0)] {
            assert_eq!(command.life().as_millis(), 1_500);
        }
        for command in [plan.raise(owner, 1), plan.release(owner, None, QueueUpdate::None), Command::time()] {
            assert!(command.life().is_zero());
        }
    }
}
