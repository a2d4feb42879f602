//! The keys of one lock and the commands on them.
//!
//! The lock key is exactly the name, with the manager's prefix: so every client of the plain Redlock layout on the
//! same nodes excludes us, and we it. Keys of ours beside it begin with `quorlock:` and the kind, *before* the name,
//! so that no two names can meet: a name with a suffix could be another name. See `wire::keys`.

mod form;
mod inspect_commands;
mod list_commands;
mod multi_keys;
mod permit_keys;
mod rw_keys;

use std::sync::Arc;
use std::time::Duration;

use crate::config::RESERVED;
use crate::ids::{ClientId, Edition, OwnerLabel, OwnerToken};
use crate::wire::command::{Command, push_digits};
use crate::wire::keys::{LockKeys, RECORD, digits, together};
use crate::wire::plan::form::{Form, ScriptCall};
use crate::wire::plan::multi_keys::Several;
use crate::wire::plan::permit_keys::PermitKeys;
use crate::wire::plan::rw_keys::RwKeys;
use crate::wire::script::Script;

pub(crate) use crate::wire::keys::KeyTtls;
pub(crate) use form::{LAST, QueueEntry, QueuePolicy, QueueUpdate, Waiter};
pub(crate) use inspect_commands::Looked;
pub(crate) use list_commands::{FoundName, ScanPlace, list, names};

/// What the rounds of one lock send: the commands of a lock kind, as data.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// What the lock is on the nodes.
    form: Arc<dyn Form>,
    /// What tells the locks of a manager apart: the lock key, or what stands for several of them.
    pub(crate) key: Arc<[u8]>,
    /// Keys of the names of a lock that has several, none otherwise. A release has the lists of all of them, so a call that
    /// stays in one says in which.
    pub(crate) parts: Arc<[Arc<[u8]>]>,
    /// Length of the names with the prefix, in bytes.
    pub(crate) key_len: usize,
    /// A name with the prefix looks like one of the keys that are kept beside locks.
    pub(crate) is_reserved: bool,
    /// Slot of a hold, of a semaphore.
    pub(crate) slot: Option<u8>,
    /// Several readers may hold it at a time.
    pub(crate) is_shared: bool,
    /// Calls of the manager wait while it is noted that the manager holds it. Not of a semaphore: its calls wait for any slot.
    pub(crate) is_noted: bool,
    /// Text behind the owner token, in the value of the lock.
    pub(crate) label: OwnerLabel,
    ttls: KeyTtls,
}

/// The forms: one for each kind of lock that has scripts of its own.
impl Plan {
    /// A mutex called `name`.
    pub(crate) fn mutex(prefix: &[u8], name: &[u8], ttls: KeyTtls) -> Plan {
        let key: Arc<[u8]> = [prefix, name].concat().into();
        Plan::of(
            LockKeys::of(Arc::clone(&key)),
            &[&key],
            Arc::clone(&key),
            ttls,
        )
    }

    /// Several locks that are taken together; `names`: sorted, and none of them twice.
    pub(crate) fn several<'a>(
        prefix: &[u8],
        names: impl Iterator<Item = &'a [u8]>,
        ttls: KeyTtls,
    ) -> Plan {
        let parts: Arc<[Arc<[u8]>]> = names.map(|name| [prefix, name].concat().into()).collect();
        let names: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        let plan = Plan::of(Several::new(&parts), &names, together("many", &names), ttls);
        Plan { parts, ..plan }
    }

    /// A semaphore with so many permits, 1 to 256.
    pub(crate) fn semaphore(prefix: &[u8], name: &[u8], permits: usize, ttls: KeyTtls) -> Plan {
        let name = [prefix, name].concat();
        // Not of the number of permits: calls that say another number wait in the same list.
        let key = together("slots", &[&name]);
        Plan {
            is_noted: false,
            ..Plan::of(PermitKeys::new(&name, permits), &[&name], key, ttls)
        }
    }

    /// The lock of a mutex, for one of several readers at a time.
    pub(crate) fn to_read(&self) -> Plan {
        Plan {
            form: Arc::new(RwKeys::of(LockKeys::of(Arc::clone(&self.key)))),
            is_shared: true,
            ..self.clone()
        }
    }

    /// A hold of each form, for what is true of all of them.
    #[cfg(test)]
    fn of_each_form(ttls: KeyTtls) -> [Plan; 4] {
        let mutex = Plan::mutex(b"", b"a", ttls);
        let several = Plan::several(b"", [&b"a"[..], b"b"].into_iter(), ttls);
        [
            mutex.to_read(),
            mutex,
            several,
            Plan::semaphore(b"", b"s", 2, ttls).of_slot(1),
        ]
    }
}

impl Plan {
    fn of(form: impl Form + 'static, names: &[&[u8]], key: Arc<[u8]>, ttls: KeyTtls) -> Plan {
        Plan {
            form: Arc::new(form),
            key,
            parts: Arc::default(),
            key_len: names
                .iter()
                .fold(0, |len, name| len.saturating_add(name.len())),
            is_reserved: names.iter().any(|name| name.starts_with(RESERVED)),
            slot: None,
            is_shared: false,
            is_noted: true,
            label: OwnerLabel::default(),
            ttls,
        }
    }

    /// The same for a hold of this slot, of a semaphore.
    pub(crate) fn of_slot(&self, slot: u8) -> Plan {
        match self.form.of_slot(slot) {
            Some(form) => Plan {
                form,
                slot: Some(slot),
                ..self.clone()
            },
            None => self.clone(),
        }
    }

    /// Whether its key is not that of a lock, and so does not say in which waiting lists its calls are.
    pub(crate) fn has_lists_of_its_own(&self) -> bool {
        self.key.starts_with(RESERVED)
    }

    /// A command with the value of the lock while `owner` holds it: its token, a space, and the label. The same in all commands
    /// of a hold, because nodes compare whole values.
    fn command(&self, call: &ScriptCall<'_>, owner: OwnerToken) -> Command {
        let space: &[u8] = if self.label.0.is_empty() { b"" } else { b" " };
        let value = [&owner.to_value(), space, self.label.0.as_bytes()].concat();
        Command::of_script(call.script, &call.keys, &[&value])
    }

    /// What stands in a waiting list for `waiter`. Calls for several names have entries of their own in the list of each.
    fn member(&self, waiter: Waiter) -> Vec<u8> {
        let (Waiter::Client(client) | Waiter::Reader(client, _)) = waiter;
        let mut member = client.0.to_vec();
        if self.has_lists_of_its_own() {
            member.push(b'/');
            member.extend_from_slice(&self.key);
        } else if let Waiter::Reader(_, number) = waiter {
            member.push(b'r');
            push_digits(&mut member, number);
        }
        member
    }

    pub(crate) fn acquire(
        &self,
        owner: OwnerToken,
        ttl_ms: u64,
        proposal: u64,
        policy: &QueuePolicy,
    ) -> Command {
        let call = self.form.acquire(owner, policy);
        let mut command = self.compared(&call, owner, ttl_ms, proposal);
        call.more.iter().for_each(|arg| command.push(arg));
        let mut place = Vec::with_capacity(64);
        push_digits(&mut place, policy.since);
        place.push(b' ');
        if let Some(entry) = policy.entry.filter(|_| policy.enters) {
            push_digits(&mut place, entry.life);
        }
        place.push(b' ');
        if let Some(entry) = policy.entry {
            place.extend(self.member(entry.waiter));
        }
        place.push(b' ');
        place.extend_from_slice(Command::IS_NOTIFIED);
        command.push(&place);
        command.waits = policy.entry.is_some();
        command
    }

    /// A command that gives the key a life of `ttl_ms`, if the server's record is the one that the client knows.
    fn compared(
        &self,
        call: &ScriptCall<'_>,
        owner: OwnerToken,
        ttl_ms: u64,
        token: u64,
    ) -> Command {
        let mut command = self.command(call, owner);
        for number in [ttl_ms, token, self.ttls.fence] {
            command.push_number(number);
        }
        command.push_edition();
        command.life = Duration::from_millis(ttl_ms);
        command
    }

    pub(crate) fn raise(&self, owner: OwnerToken, token: u64) -> Command {
        let mut command = self.command(&self.form.raise(), owner);
        command.push_number(token);
        command.push_number(self.ttls.fence);
        command
    }

    /// `keep`: the counter gets its full life again.
    pub(crate) fn extend(&self, owner: OwnerToken, ttl_ms: u64, token: u64, keep: bool) -> Command {
        let mut command = self.compared(&self.form.extend(), owner, ttl_ms, token);
        if keep {
            command.push(b"keep");
        }
        command
    }

    /// Sets the lock again where it is gone. Only for an owner who has just been confirmed by a majority.
    pub(crate) fn heal(&self, owner: OwnerToken, ttl_ms: u64, token: u64) -> Command {
        let mut command = self.extend(owner, ttl_ms, token, false);
        command.push(b"heal");
        command
    }

    /// `raised`: the owner's fencing token, if its acquire has proposed another one to the nodes.
    pub(crate) fn release(
        &self,
        owner: OwnerToken,
        raised: Option<u64>,
        update: QueueUpdate,
    ) -> Command {
        self.give_back(self.form.release(raised, self.ttls.fence), owner, update)
    }

    /// Gives back what nodes have granted besides the slot of a hold, and leaves their waiting lists; nothing where there are
    /// no slots.
    pub(crate) fn keep(&self, owner: OwnerToken, waiter: Option<Waiter>) -> Option<Command> {
        let call = self.form.release_others(self.ttls.fence)?;
        let update = waiter.map_or(QueueUpdate::None, QueueUpdate::Leave);
        let mut command = self.give_back(call, owner, update);
        command.keeps_a_slot = true;
        Some(command)
    }

    fn give_back(&self, call: ScriptCall<'_>, owner: OwnerToken, update: QueueUpdate) -> Command {
        let mut command = self.command(&call, owner);
        call.more.iter().for_each(|arg| command.push(arg));
        // Sent again after the acquire of the next call, its update would be wrong: it would remove that call from the
        // list, or notify no client because that call was about to ask.
        if matches!(update, QueueUpdate::Leave(_) | QueueUpdate::HandOver { .. }) {
            command.end_again();
        }
        match update {
            QueueUpdate::None => {}
            QueueUpdate::Leave(waiter) => command.push(&self.member(waiter)),
            QueueUpdate::HandOver { waiter, since } => {
                command.push(&self.member(waiter));
                command.push_number(since);
            }
            QueueUpdate::Stay {
                entry,
                since,
                which,
            } => {
                command.push(&self.member(entry.waiter));
                command.push_number(since);
                command.push_number(entry.life);
                if !self.parts.is_empty() {
                    command.push_number(u64::from(which.unwrap_or(0)).saturating_add(1));
                }
                command.push(Command::IS_NOTIFIED);
                command.waits = true;
            }
        }
        command
    }

    /// Takes `waiter` off the waiting lists.
    pub(crate) fn leave(&self, waiter: Waiter) -> Command {
        self.release(OwnerToken::nobody(), None, QueueUpdate::Leave(waiter))
    }

    /// Takes `client` off the waiting list of the lock whose key is `lock`; `None` for what no lock can be called: the key of
    /// several locks, or of a semaphore.
    pub(crate) fn leave_key(lock: &[u8], client: ClientId) -> Option<Command> {
        let plan = Plan::mutex(b"", lock, KeyTtls::default());
        (!plan.is_reserved).then(|| plan.leave(Waiter::Client(client)))
    }
}

/// What a greeting tells a server: see `scripts/greet.lua`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Greeting {
    /// For the record if it changes.
    pub(crate) edition: Edition,
    /// The longest ttl of this client's locks, and the longest that records of other servers have: milliseconds.
    pub(crate) own: u64,
    pub(crate) reported: u64,
    /// How many servers this client has.
    pub(crate) servers: u64,
    pub(crate) kind: GreetKind,
}

/// What a greeting is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GreetKind {
    /// Nothing is written.
    Look,
    /// The record is brought up to date.
    Note,
    /// Likewise, and the server has lost nothing.
    Vouch,
}

/// Updates a server's record, and asks since when the server has kept its data.
pub(crate) fn greet(greeting: &Greeting) -> Command {
    let word: &[u8] = match greeting.kind {
        GreetKind::Look => b"look",
        GreetKind::Note => b"note",
        GreetKind::Vouch => b"vouch",
    };
    let own = digits(greeting.own);
    let reported = digits(greeting.reported);
    let servers = digits(greeting.servers);
    let args: [&[u8]; 5] = [&greeting.edition.0, &own, &reported, word, &servers];
    Command::of_script(Script::Greet, &[RECORD], &args)
}

#[cfg(test)]
mod tests;
