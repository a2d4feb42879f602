//! The commands of one lock, and those by which operators look at a lock, take it, or find it.
//!
//! The lock key is exactly the name, with the manager's prefix: so clients of the plain Redlock
//! layout on the same nodes and this crate exclude each other. Further keys begin with `quorlock:`
//! and the kind, *before* the name, so that no two names collide: a name with a suffix could be
//! another name. See `wire::keys`.

use std::slice;
use std::sync::Arc;

use crate::answer::Which;
use crate::config::RESERVED;
use crate::ids::{ClientId, OwnerLabel, OwnerToken, RecordVersion, wide};
use crate::wire::command::{Command, push_digits};
use crate::wire::keys::{LockKeys, RECORD, beside, digits, keys_of, multi_key, slot_of};
use crate::wire::reply::HandedOver;
use crate::wire::script::{Kind, Script};

pub(crate) use crate::wire::keys::KeyTtls;

/// The commands of a lock kind, as data.
#[derive(Clone, Debug)]
pub(crate) struct LockCommands {
    /// The locks taken together, sorted and unique; or the slots of a semaphore. Each key is a lock
    /// of its own, and excludes other holders of it.
    locks: Arc<[LockKeys]>,
    /// Identity of the lock within a manager: the lock key, or a key for several of them.
    pub(crate) key: Arc<[u8]>,
    /// Keys of several names; none for one name.
    pub(crate) multi_keys: Arc<[Arc<[u8]>]>,
    /// Length of the names with the prefix, in bytes.
    pub(crate) key_len: usize,
    /// Whether a name with the prefix resembles the keys beside locks.
    pub(crate) is_reserved: bool,
    /// Whether it takes one of several slots, with a fencing counter each and one waiting list for
    /// all. Calls wait for any slot, also while the manager holds one.
    pub(crate) has_slots: bool,
    /// Slot of a hold, of a semaphore.
    pub(crate) slot: Option<u8>,
    /// Whether several readers may hold it: they share the lock key, and each has an entry beside
    /// it.
    pub(crate) is_shared: bool,
    /// Text behind the owner token, in the value of the lock.
    pub(crate) label: OwnerLabel,
    ttls: KeyTtls,
}

/// Kinds of locks.
impl LockCommands {
    /// A mutex called `name`.
    pub(crate) fn mutex(prefix: &[u8], name: &[u8], ttls: KeyTtls) -> LockCommands {
        let key: Arc<[u8]> = [prefix, name].concat().into();
        let locks = [LockKeys::of(Arc::clone(&key))];
        LockCommands::of(locks.into(), &[&key], Arc::clone(&key), ttls)
    }

    /// Several locks taken together; `names`: sorted and unique.
    pub(crate) fn multi<'a>(
        prefix: &[u8],
        names: impl Iterator<Item = &'a [u8]>,
        ttls: KeyTtls,
    ) -> LockCommands {
        let multi_keys: Arc<[Arc<[u8]>]> =
            names.map(|name| [prefix, name].concat().into()).collect();
        let names: Vec<&[u8]> = multi_keys.iter().map(|part| &**part).collect();
        let locks = multi_keys.iter().cloned().map(LockKeys::of).collect();
        let commands = LockCommands::of(locks, &names, multi_key("many", &names), ttls);
        LockCommands {
            multi_keys,
            ..commands
        }
    }

    /// A semaphore with 1 to 256 permits.
    pub(crate) fn semaphore(
        prefix: &[u8],
        name: &[u8],
        permits: usize,
        ttls: KeyTtls,
    ) -> LockCommands {
        let name = [prefix, name].concat();
        let slots = (0..=u8::MAX).take(permits);
        let locks = slots.map(|it| LockKeys::of_slot(&name, it)).collect();
        // Without the number of permits: calls with another number share the list.
        let key = multi_key("slots", &[&name]);
        LockCommands {
            has_slots: true,
            ..LockCommands::of(locks, &[&name], key, ttls)
        }
    }

    fn of(locks: Arc<[LockKeys]>, names: &[&[u8]], key: Arc<[u8]>, ttls: KeyTtls) -> LockCommands {
        LockCommands {
            locks,
            key,
            multi_keys: Arc::default(),
            key_len: names
                .iter()
                .fold(0, |len, name| len.saturating_add(name.len())),
            is_reserved: names.iter().any(|name| name.starts_with(RESERVED)),
            has_slots: false,
            slot: None,
            is_shared: false,
            label: OwnerLabel::default(),
            ttls,
        }
    }

    /// The lock of a mutex, for one of several readers.
    pub(crate) fn to_read(&self) -> LockCommands {
        LockCommands {
            is_shared: true,
            ..self.clone()
        }
    }

    /// The same for a hold of this slot of a semaphore.
    pub(crate) fn of_slot(&self, slot: u8) -> LockCommands {
        LockCommands {
            slot: Some(slot).filter(|_| self.has_slots),
            ..self.clone()
        }
    }

    /// A hold of each kind, for common tests.
    #[cfg(test)]
    fn of_each_kind(ttls: KeyTtls) -> [LockCommands; 4] {
        let mutex = LockCommands::mutex(b"", b"a", ttls);
        let multi = LockCommands::multi(b"", [&b"a"[..], b"b"].into_iter(), ttls);
        [
            mutex.to_read(),
            mutex,
            multi,
            LockCommands::semaphore(b"", b"s", 2, ttls).of_slot(1),
        ]
    }
}

/// Commands.
impl LockCommands {
    /// The value of the lock while `owner` holds it: its token, a space, and the label. The same in
    /// all commands of a hold, because nodes compare whole values.
    fn value(&self, owner: OwnerToken) -> Vec<u8> {
        let space: &[u8] = if self.label.0.is_empty() { b"" } else { b" " };
        [&owner.to_value(), space, self.label.0.as_bytes()].concat()
    }

    /// The call of this owner in a waiting list, after its client.
    pub(crate) fn member(&self, owner: OwnerToken) -> Vec<u8> {
        let kind: &[u8] = if self.is_shared { b"r" } else { b"w" };
        [kind, &self.value(owner)].concat()
    }

    /// A command on all locks or slots.
    fn command(&self, scripts: [Script; 2], owner: OwnerToken) -> Command {
        let keys = keys_of(&self.locks, self.has_slots);
        Command::of_script(self.script(scripts), &keys, &[&self.value(owner)])
    }

    /// The script of readers is the second.
    fn script(&self, [exclusive, shared]: [Script; 2]) -> Script {
        if self.is_shared { shared } else { exclusive }
    }

    /// Adds the arguments that set a key for `ttl_ms`, if the server's record has the client's
    /// version.
    fn compare(&self, command: &mut Command, ttl_ms: u64, token: u64) {
        for number in [ttl_ms, token, self.ttls.fence] {
            command.push_number(number);
        }
        command.push_record_version();
    }

    pub(crate) fn acquire(
        &self,
        owner: OwnerToken,
        ttl_ms: u64,
        proposal: u64,
        policy: &QueuePolicy,
    ) -> Command {
        let mut command = self.command([Script::Acquire, Script::AcquireShared], owner);
        self.compare(&mut command, ttl_ms, proposal);
        let mut place = Vec::with_capacity(64);
        push_digits(&mut place, policy.since);
        place.push(b' ');
        if let Some(entry) = policy.entry.filter(|_| policy.enters) {
            push_digits(&mut place, entry.life);
        }
        place.push(b' ');
        if let Some(entry) = policy.entry {
            place.extend_from_slice(&entry.client.0);
        }
        place.push(b' ');
        push_digits(&mut place, self.ttls.handed_over_ms);
        place.push(b' ');
        if self.has_slots {
            // The same for all nodes, and another one for each attempt.
            let slots = wide(self.locks.len());
            let slot = owner.number().checked_rem(slots).unwrap_or(0);
            push_digits(&mut place, slot.saturating_add(1));
        } else {
            place.extend_from_slice(NO_SLOTS);
        }
        place.push(b' ');
        place.extend_from_slice(Command::IS_NOTIFIED);
        command.push(&place);
        command.waits = policy.entry.is_some();
        command
    }

    /// `sets`: also sets missing keys.
    pub(crate) fn extend(
        &self,
        owner: OwnerToken,
        ttl_ms: u64,
        number: u64,
        sets: bool,
        client: Option<ClientId>,
    ) -> Command {
        let mut command = self.extension(owner, ttl_ms, number);
        command.push(if sets { b"set" } else { b"keep" });
        if let Some(client) = client {
            command.push(&client.0);
        }
        command
    }

    fn extension(&self, owner: OwnerToken, ttl_ms: u64, number: u64) -> Command {
        // Of a semaphore the slot of the hold.
        let slot = self.slot.and_then(|it| self.locks.get(usize::from(it)));
        let held = slot.map_or(&self.locks[..], slice::from_ref);
        let script = self.script([Script::Extend, Script::ExtendShared]);
        let mut command = Command::of_script(script, &keys_of(held, false), &[&self.value(owner)]);
        self.compare(&mut command, ttl_ms, number);
        command
    }

    /// Raises the counters to the token, where the owner holds the lock.
    pub(crate) fn raise(&self, owner: OwnerToken, token: u64) -> Command {
        let mut command = self.extension(owner, 1, token);
        command.push(b"raise");
        command.kind = Kind::Raise;
        command
    }

    pub(crate) fn release(&self, owner: OwnerToken, offer: Offer, update: QueueUpdate) -> Command {
        let keep: &[u8] = if self.has_slots { b"0" } else { NO_SLOTS };
        self.give_back(keep, owner, offer, update)
    }

    /// Releases all slots besides that of the hold, and leaves the nodes' waiting lists; `None`
    /// without slots.
    pub(crate) fn keep(&self, owner: OwnerToken, client: Option<ClientId>) -> Option<Command> {
        let update = client.map_or(QueueUpdate::None, QueueUpdate::Leave);
        let keep = digits(u64::from(self.slot?).saturating_add(1));
        let mut command = self.give_back(&keep, owner, Offer::default(), update);
        command.keeps_a_slot = true;
        Some(command)
    }

    fn give_back(
        &self,
        keep: &[u8],
        owner: OwnerToken,
        offer: Offer,
        update: QueueUpdate,
    ) -> Command {
        let mut command = self.command([Script::Release, Script::ReleaseShared], owner);
        command.push(&offer.text(self.ttls, keep));
        match update {
            QueueUpdate::None => {}
            QueueUpdate::Leave(client) => command.push(&client.0),
            QueueUpdate::Enter(entering) => {
                command.push(&entering.entry.client.0);
                command.push_number(entering.since);
                let which = u64::from(entering.which.unwrap_or(0)).saturating_add(1);
                let mut enters = Vec::new();
                for number in [which, entering.entry.life, u64::from(entering.yields)] {
                    push_digits(&mut enters, number);
                    enters.push(b' ');
                }
                enters.extend(entering.member);
                enters.push(b' ');
                enters.extend_from_slice(Command::IS_NOTIFIED);
                command.push(&enters);
                command.waits = true;
            }
        }
        command
    }

    /// Asks what is recorded of the job of this lock. `owner`: whether this owner holds the lock,
    /// too, on a server that has lost nothing since the last sync.
    pub(crate) fn look(&self, owner: Option<OwnerToken>) -> Command {
        let mut command = self.of_job(Script::OnceLook, &[], owner);
        if owner.is_some() {
            command.push_record_version();
        }
        command
    }

    /// Records a run of the job of this lock, where `owner` holds the lock; without one a copy.
    /// `life`: microseconds.
    pub(crate) fn record(&self, owner: Option<OwnerToken>, text: &str, life: u64) -> Command {
        let life = digits((life / 1_000).max(1));
        self.of_job(Script::OnceRecord, &[text.as_bytes(), &life], owner)
    }

    fn of_job(&self, script: Script, args: &[&[u8]], owner: Option<OwnerToken>) -> Command {
        let keys = [&*self.key, &beside("done", &self.key), RECORD];
        let mut command = Command::of_script(script, &keys, args);
        if let Some(owner) = owner {
            command.push(&self.value(owner));
        }
        command
    }

    /// Releases a lock handed over to a missing owner of this client.
    pub(crate) fn give_back_handed_over(notice: &HandedOver, client: ClientId) -> Command {
        let keys = match slot_of(&notice.key, b"slot-") {
            Some((name, slot)) => LockKeys::of_slot(name, slot),
            None => LockKeys::of(notice.key[..].into()),
        };
        let ttls = KeyTtls {
            fence: 0,
            handed_over_ms: notice.life,
        };
        let mut command = keys.take(notice.value.as_bytes(), notice.reads, ttls);
        command.push(&client.0);
        command
    }
}

/// Arguments of a sync: see `scripts/sync_record.lua`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncRecord {
    /// Version of the record if it changes.
    pub(crate) record_version: RecordVersion,
    /// Longest ttl of this client's locks, and longest one in records of other servers:
    /// milliseconds.
    pub(crate) own: u64,
    pub(crate) reported: u64,
    /// Number of this client's servers.
    pub(crate) servers: u64,
    pub(crate) kind: SyncKind,
}

/// Purpose of a sync.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SyncKind {
    /// Nothing is written.
    Look,
    /// The record is brought up to date.
    Note,
    /// Likewise, and the server has lost nothing.
    Vouch,
}

/// Updates a server's record, and asks for the age of its data.
pub(crate) fn sync_record(sync: &SyncRecord) -> Command {
    let word: &[u8] = match sync.kind {
        SyncKind::Look => b"look",
        SyncKind::Note => b"note",
        SyncKind::Vouch => b"vouch",
    };
    let own = digits(sync.own);
    let reported = digits(sync.reported);
    let servers = digits(sync.servers);
    let args: [&[u8]; 5] = [&sync.record_version.0, &own, &reported, word, &servers];
    Command::of_script(Script::SyncRecord, &[RECORD], &args)
}

/// What locks send, on keys of their own and with a record of their own: of version 0 and without
/// quarantine. So it needs neither a vote of the server nor its record. First a mutex, then a
/// reader: a call takes the lock, a second one waits and gets it. What they set is gone at the end,
/// or expires.
pub(crate) fn check(prefix: &[u8]) -> Vec<Command> {
    let lock = [prefix, b"quorlock:check:", &RecordVersion::draw().0].concat();
    let record = beside("check", &lock);
    let lock = LockKeys::of(lock.into());
    let mut keys = lock.all();
    if let Some(it) = keys.get_mut(2) {
        *it = &record;
    }
    let zeros = [b'0'; 49];
    let mut commands = vec![Command::plain(&[b"SET", &record, &zeros, b"PX", b"9999"])];
    for [acquire, extend, release] in [
        [Script::Acquire, Script::Extend, Script::Release],
        [
            Script::AcquireShared,
            Script::ExtendShared,
            Script::ReleaseShared,
        ],
    ] {
        for (script, args) in [
            (
                acquire,
                "1,999,1,999,000000000000000,1 999 0000000000000000 999 - 0",
            ),
            (
                acquire,
                "2,999,1,999,000000000000000,1 999 0000000000000000 999 - 0",
            ),
            (extend, "1,9999,1,999,000000000000000,set"),
            (release, "1,0 999 999 0 -"),
            (release, "2,0 999 999 0 -"),
        ] {
            let args: Vec<_> = args.split(',').map(str::as_bytes).collect();
            let mut command = Command::of_script(script, &keys, &args);
            command.kind = Kind::Check;
            commands.push(command);
        }
    }
    commands.push(Command::plain(&[b"DEL", &lock.fence, &record]));
    commands
}

/// Placeholder of the slot in commands without slots.
const NO_SLOTS: &[u8] = b"-";

/// Place of an acquire among waiting clients.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueuePolicy {
    /// Start of the call: microseconds since 1970.
    pub(crate) since: u64,
    /// Entry of a waiting call in the waiting list.
    pub(crate) entry: Option<QueueEntry>,
    /// Whether it enters the waiting list if refused.
    pub(crate) enters: bool,
}

/// The entry of a client's call in a waiting list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueueEntry {
    pub(crate) client: ClientId,
    /// Life of the list after it, in milliseconds.
    pub(crate) life: u64,
}

/// Offer of a release to the next owner.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Offer {
    /// A fencing token; 0 for none.
    pub(crate) token: u64,
    /// Fencing token of the releasing owner, if its acquire proposed another one.
    pub(crate) raised: Option<u64>,
}

impl Offer {
    /// Argument of a release. `keep`: see `scripts/release.lua`.
    fn text(self, ttls: KeyTtls, keep: &[u8]) -> Vec<u8> {
        let Offer { token, raised } = self;
        let mut text = Vec::with_capacity(48);
        for number in [token, ttls.fence, ttls.handed_over_ms, raised.unwrap_or(0)] {
            push_digits(&mut text, number);
            text.push(b' ');
        }
        text.extend_from_slice(keep);
        text
    }
}

/// Change of the waiting list by a release, besides the hand-over to the first call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum QueueUpdate {
    /// Nothing: its call was never in it.
    None,
    /// Its call leaves the list.
    Leave(ClientId),
    /// Likewise, and a call of the client enters it.
    Enter(Entering),
}

/// A call that enters a waiting list by a release.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Entering {
    pub(crate) entry: QueueEntry,
    /// When it began.
    pub(crate) since: u64,
    /// In the list of which of several locks.
    pub(crate) which: Which,
    /// See [`LockCommands::member`].
    pub(crate) member: Vec<u8>,
    /// Whether it gives back its own grant: to an earlier call, never to itself.
    pub(crate) yields: bool,
}

/// Largest number of readers in an inspection.
const READERS_MAX: u64 = 100;
/// Longest value in an inspection, in bytes: no client of the plain layout has longer ones.
const VALUE_MAX: u64 = 512;

impl LockKeys {
    /// Keys of a lock, or of one slot of a semaphore. `name`: with the prefix.
    pub(crate) fn named(name: &[u8], slot: Option<u8>) -> LockKeys {
        match slot {
            None => LockKeys::of(name.into()),
            Some(slot) => LockKeys::of_slot(name, slot),
        }
    }

    /// Asks for the state of the lock.
    pub(crate) fn inspect(&self) -> Command {
        Command::of_script(
            Script::Inspect,
            &[&*self.lock, &self.fence, &self.waiting, &self.readers],
            &[&digits(READERS_MAX), &digits(VALUE_MAX)],
        )
    }

    /// Deletes the key with this value, or the reader's entry with it, and nothing else. Then the
    /// next call has its turn.
    pub(crate) fn take(&self, value: &[u8], reads: bool, ttls: KeyTtls) -> Command {
        let script = if reads {
            Script::ReleaseShared
        } else {
            Script::Release
        };
        // The next call asks for a token of its own.
        let offer = Offer::default().text(ttls, NO_SLOTS);
        Command::of_script(script, &self.all(), &[value, &offer])
    }
}

/// Largest number of keys per reply: somewhat less than the limit of an array.
const KEYS_MAX: u64 = 60;
/// Longest key, and all keys together, in bytes: somewhat less than the limits of a reply.
const KEY_MAX: u64 = 60_000;
const TOTAL_MAX: u64 = 200_000;

/// A lock, or a slot of a semaphore: its name with the prefix, and the slot.
pub(crate) type FoundName = (Vec<u8>, Option<u8>);

/// Next place in the search of a node's keys.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ScanPlace {
    pub(crate) cursor: u64,
    /// Number of keys, about.
    pub(crate) count: u64,
}

/// Asks for this crate's keys at this place.
pub(crate) fn list(place: ScanPlace) -> Command {
    let ours = [RESERVED, b"*"].concat();
    let args = [
        digits(place.cursor),
        digits(place.count),
        ours,
        digits(KEYS_MAX),
        digits(KEY_MAX),
        digits(TOTAL_MAX),
    ];
    let args: Vec<_> = args.iter().map(Vec::as_slice).collect();
    Command::of_script(Script::List, &[RECORD], &args)
}

#[cfg(test)]
mod tests;
