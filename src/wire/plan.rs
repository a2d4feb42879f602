//! The keys of one lock and the commands on them.
//!
//! The lock key is exactly the name, with the manager's prefix: so every client of the plain Redlock layout on the
//! same nodes excludes us, and we it. Keys of ours beside it begin with `quorlock:` and the kind, *before* the name,
//! so that no two names can meet: a name with a suffix could be another name. See `wire::keys`.

use std::sync::Arc;

use crate::config::RESERVED;
use crate::ids::{ClientId, OwnerLabel, OwnerToken};
use crate::wire::command::{Command, Kind};
use crate::wire::keys::beside;

/// The key that says since when a node has kept its data: `scripts/canary.lua`.
pub(crate) const CANARY: &[u8] = b"quorlock:canary";

/// The key that says which node it is, and which sets of nodes its clients use: `scripts/meet.lua`.
const SET: &[u8] = b"quorlock:set";

/// What a round of one lock sends: the commands of a lock kind, as data.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    lock: Arc<[u8]>,
    fence: Vec<u8>,
    waiters: Vec<u8>,
    /// Its key is called the turn.
    reservation: Vec<u8>,
    ttls: KeyTtls,
    label: OwnerLabel,
}

/// How long things last on a node, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct KeyTtls {
    /// Of a fencing counter; 0 for no end.
    pub(crate) fence: u64,
}

/// How an acquire treats the clients that wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueuePolicy {
    /// Leave a free lock to a client that has waited for longer.
    pub(crate) fair: bool,
    /// When the call began: microseconds since 1970.
    pub(crate) since: u64,
    /// The entry in the waiting list, of a call that waits.
    pub(crate) entry: Option<QueueEntry>,
    /// Enter the waiting list if refused.
    pub(crate) enters: bool,
}

impl QueuePolicy {
    /// Behind all clients that wait, and in no list.
    pub(crate) fn without_place(self) -> QueuePolicy {
        QueuePolicy { fair: true, since: LAST, enters: false, ..self }
    }
}

/// When a call began that is behind all others.
pub(crate) const LAST: u64 = u64::MAX;

/// A client's entry in a waiting list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueueEntry {
    pub(crate) client: ClientId,
    /// Life of the list after it, in milliseconds.
    pub(crate) life: u64,
}

/// What a release changes in the waiting list, besides notifying the first client in it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum QueueUpdate {
    /// Nothing: the client was never in it.
    None,
    /// The client leaves the list.
    Leave(ClientId),
    /// A call of the client that began at `since` goes on waiting, and enters the list.
    Stay { entry: QueueEntry, since: u64 },
    /// A call of the client that began at `since` comes next: its acquire follows on the same connection.
    HandOver { client: ClientId, since: u64 },
}

impl Plan {
    /// A mutex called `name`.
    pub(crate) fn mutex(prefix: &[u8], name: &[u8], ttls: KeyTtls) -> Plan {
        Plan::of_key([prefix, name].concat().into(), ttls)
    }

    fn of_key(lock: Arc<[u8]>, ttls: KeyTtls) -> Plan {
        let [fence, waiters, reservation] = ["fence", "waiters", "turn"].map(|kind| beside(kind, &lock));
        Plan { lock, fence, waiters, reservation, ttls, label: OwnerLabel::default() }
    }

    /// Writes `label` behind the owner token, in the value of the lock.
    pub(crate) fn signed(self, label: &OwnerLabel) -> Plan {
        Plan { label: label.clone(), ..self }
    }

    /// The value of the lock while `owner` holds it: its token, a space, and the label. The same in all commands of a hold,
    /// because nodes compare whole values.
    fn value(&self, owner: OwnerToken) -> Vec<u8> {
        let mut value = owner.to_value().to_vec();
        if !self.label.as_str().is_empty() {
            value.push(b' ');
            value.extend_from_slice(self.label.as_str().as_bytes());
        }
        value
    }

    /// Takes `client` off the waiting list of the lock whose key is `lock`.
    pub(crate) fn leave(lock: &[u8], client: ClientId) -> Command {
        Plan::of_key(lock.into(), KeyTtls::default()).release(OwnerToken::nobody(), None, QueueUpdate::Leave(client))
    }

    /// The lock key, which tells the locks of a manager apart.
    pub(crate) fn key(&self) -> &Arc<[u8]> {
        &self.lock
    }

    /// Length of the lock key, in bytes.
    pub(crate) fn key_len(&self) -> usize {
        self.lock.len()
    }

    /// Whether the lock key looks like one of the keys that are kept beside locks.
    pub(crate) fn is_reserved(&self) -> bool {
        self.lock.starts_with(RESERVED)
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
        let owner = self.value(owner);
        let (ttl, proposal) = (digits(ttl_ms), digits(proposal));
        let (fencing_ttl, quarantine) = (digits(self.ttls.fence), digits(quarantine));
        let keys: [&[u8]; 5] = [&self.lock, &self.fence, &self.waiters, &self.reservation, CANARY];
        let way: &[u8] = if policy.fair { b"fair" } else { b"unfair" };
        let since = digits(policy.since);
        let client = policy.entry.map(|it| it.client.to_value());
        let client = client.as_ref().map_or(&[][..], |it| it);
        let life = policy.entry.filter(|_| policy.enters).map(|it| digits(it.life)).unwrap_or_default();
        let args: [&[u8]; 10] =
            [&owner, &ttl, &proposal, &fencing_ttl, &quarantine, way, &since, client, &life, Command::IS_TOLD];
        let command = Command::script(Kind::Acquire, &keys, &args).that_keeps_it_for(ttl_ms);
        if policy.entry.is_some() { command.that_waits() } else { command }
    }

    pub(crate) fn raise(&self, owner: OwnerToken, token: u64) -> Command {
        let args = [&self.value(owner)[..], &digits(token), &digits(self.ttls.fence)];
        Command::script(Kind::Raise, &[&self.lock, &self.fence], &args)
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
        let (owner, ttl, token) = (self.value(owner), digits(ttl_ms), digits(token));
        let (fencing_ttl, quarantine) = (digits(self.ttls.fence), digits(quarantine));
        let mut args: Vec<&[u8]> = vec![&owner, &ttl, &token, &fencing_ttl, &quarantine];
        args.extend(more.map(str::as_bytes));
        Command::script(Kind::Extend, &[&self.lock, &self.fence, CANARY], &args).that_keeps_it_for(ttl_ms)
    }

    /// `raised`: the owner's fencing token, if its acquire has proposed another one to the nodes.
    pub(crate) fn release(&self, owner: OwnerToken, raised: Option<u64>, update: QueueUpdate) -> Command {
        let owner = self.value(owner);
        let (token, fencing_ttl) = (raised.map(digits), digits(self.ttls.fence));
        let (client, since, life) = match update {
            QueueUpdate::None => (None, None, None),
            QueueUpdate::Leave(client) => (Some(client), None, None),
            QueueUpdate::HandOver { client, since } => (Some(client), Some(since), None),
            QueueUpdate::Stay { entry, since } => (Some(entry.client), Some(since), Some(entry.life)),
        };
        let (client, since, life) = (client.map(ClientId::to_value), since.map(digits), life.map(digits));
        let mut keys: Vec<&[u8]> = vec![&self.lock, &self.waiters, &self.reservation];
        let mut always: Vec<&[u8]> = vec![&owner];
        if let Some(token) = &token {
            keys.push(&self.fence);
            always.extend([&token[..], &fencing_ttl]);
        }
        let mut args = always.clone();
        args.extend(client.as_ref().map(|it| &it[..]));
        args.extend(since.as_deref());
        args.extend(life.as_deref());
        if life.is_some() {
            args.push(Command::IS_TOLD);
        }
        let command = Command::script(Kind::Release, &keys, &args);
        match update {
            QueueUpdate::None => command,
            QueueUpdate::Stay { .. } => command.that_waits(),
            // Sent again after the acquire of the next call, its update would be wrong: it would remove that call from the
            // list, or notify no client because that call was about to ask.
            QueueUpdate::Leave(_) | QueueUpdate::HandOver { .. } => command.that_says_less_again(&keys, &always),
        }
    }
}

/// Tells a node that we need a quarantine of `own` milliseconds if it loses its data, and that another node has told us of
/// one of `heard` milliseconds, last asked for on `heard_on`, in days since 1970. Asks since when the node has kept its data.
pub(crate) fn greet(own: u64, heard: u64, heard_on: u64) -> Command {
    Command::script(Kind::Greet, &[CANARY], &[&digits(own), &digits(heard), &digits(heard_on)])
}

/// Tells a node that has never been used for locks, as far as it knows, that it has lost nothing.
pub(crate) fn vouch() -> Command {
    Command::script(Kind::Greet, &[CANARY], &[b"0", b"0", b"0", b"vouch"])
}

/// Asks a node for its id, and gives it `id` if it has none. Notes there the fingerprint `set` of our `nodes`, in place of
/// the `earlier` ones.
pub(crate) fn meet(id: u64, set: Option<u64>, nodes: u64, earlier: &[u64]) -> Command {
    let hex = |it: u64| format!("{it:016x}");
    let earlier: Vec<_> = earlier.iter().copied().map(hex).collect();
    let (set, earlier) = (set.map(hex).unwrap_or_default(), earlier.join(" "));
    Command::script(Kind::Meet, &[SET], &[&digits(id), set.as_bytes(), &digits(nodes), earlier.as_bytes()])
}

fn digits(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_key_is_the_name_and_keys_beside_it_put_the_kind_first() {
        let plan = Plan::mutex(b"app:", b"report", KeyTtls::default());
        assert_eq!(**plan.key(), *b"app:report");
        assert_eq!(plan.fence, b"quorlock:fence:{app:report}");
    }

    #[test]
    fn a_call_without_a_place_is_behind_all_others_and_enters_no_list() {
        let entry = Some(QueueEntry { client: ClientId::draw().unwrap(), life: 9 });
        let policy = QueuePolicy { fair: false, since: 5, entry, enters: true }.without_place();
        assert_eq!(policy, QueuePolicy { fair: true, since: u64::MAX, entry, enters: false });
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
        Command::script(Kind::Raise, &keys, &args).write_to(&mut expected, true);
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
