//! How a command deals with the clients that wait for the lock.

use crate::answer::Which;
use crate::ids::ClientId;
use crate::wire::command::Command;
use crate::wire::plan::lock_keys::digits;
use crate::wire::script::Script;

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
    /// Of a semaphore: this slot or none.
    pub(crate) only: Option<u8>,
}

impl QueuePolicy {
    /// Behind all clients that wait, and in no list.
    pub(crate) fn without_place(self) -> QueuePolicy {
        QueuePolicy { fair: true, since: LAST, enters: false, ..self }
    }
}

impl QueuePolicy {
    /// What [`QueuePolicy::in_command`] puts behind the other arguments.
    fn args(self) -> [Vec<u8>; 4] {
        let way: &[u8] = if self.fair { b"fair" } else { b"unfair" };
        let waiter = self.entry.map(|it| it.waiter.to_value()).unwrap_or_default();
        let life = self.entry.filter(|_| self.enters).map(|it| digits(it.life)).unwrap_or_default();
        [way.to_vec(), digits(self.since), waiter, life]
    }

    /// The acquire that ends with it, and begins with `keys` and `args`.
    pub(super) fn in_command(self, script: Script, keys: &[&[u8]], args: &[&[u8]]) -> Command {
        let more = self.args();
        let more = more.iter().map(|it| &it[..]).chain([Command::IS_TOLD]);
        let args: Vec<&[u8]> = args.iter().copied().chain(more).collect();
        let command = Command::of_script(script, keys, &args);
        if self.entry.is_some() { command.that_waits() } else { command }
    }
}

/// When a call began that is behind all others.
pub(crate) const LAST: u64 = u64::MAX;

/// Who waits: a member of waiting lists.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Waiter {
    /// A client, for the call of its own that comes first.
    Client(ClientId),
    /// A call of a client that wants to read: several may at a time.
    Reader(ClientId, u64),
}

impl Waiter {
    pub(super) fn to_value(self) -> Vec<u8> {
        let mut value = self.client().to_value().to_vec();
        if let Waiter::Reader(_, number) = self {
            value.extend_from_slice(format!("r{number}").as_bytes());
        }
        value
    }

    pub(super) fn client(self) -> ClientId {
        match self {
            Waiter::Client(client) | Waiter::Reader(client, _) => client,
        }
    }
}

/// A waiter's entry in a waiting list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueueEntry {
    pub(crate) waiter: Waiter,
    /// Life of the list after it, in milliseconds.
    pub(crate) life: u64,
}

/// What a release changes in the waiting list, besides notifying the first client in it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum QueueUpdate {
    /// Nothing: it was never in it.
    None,
    /// It leaves the list.
    Leave(Waiter),
    /// A call that began at `since` goes on waiting, and enters the list: of several locks, that of the one that is in the
    /// way.
    Stay { entry: QueueEntry, since: u64, which: Which },
    /// A call of the client that began at `since` comes next: its acquire follows on the same connection.
    HandOver { waiter: Waiter, since: u64 },
}

impl QueueUpdate {
    /// The arguments that say it, behind all others of the command.
    pub(super) fn args(self) -> Vec<Vec<u8>> {
        match self {
            QueueUpdate::None => Vec::new(),
            QueueUpdate::Leave(waiter) => vec![waiter.to_value()],
            QueueUpdate::HandOver { waiter, since } => vec![waiter.to_value(), digits(since)],
            QueueUpdate::Stay { entry, since, .. } => {
                vec![entry.waiter.to_value(), digits(since), digits(entry.life), Command::IS_TOLD.to_vec()]
            }
        }
    }

    /// The release that ends with [these](QueueUpdate::args), and begins with `keys` and the arguments `always`.
    pub(super) fn in_command(self, script: Script, keys: &[&[u8]], always: &[&[u8]]) -> Command {
        let more = self.args();
        let args: Vec<&[u8]> = always.iter().copied().chain(more.iter().map(|it| &it[..])).collect();
        let command = Command::of_script(script, keys, &args);
        match self {
            QueueUpdate::None => command,
            QueueUpdate::Stay { .. } => command.that_waits(),
            // Sent again after the acquire of the next call, its update would be wrong: it would remove that call from the
            // list, or notify no client because that call was about to ask.
            QueueUpdate::Leave(_) | QueueUpdate::HandOver { .. } => command.that_says_less_again(keys, always),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_a_place_is_behind_all_others_and_enters_no_list() {
        let entry = Some(QueueEntry { waiter: Waiter::Client(ClientId::draw().unwrap()), life: 9 });
        let policy = QueuePolicy { fair: false, since: 5, entry, enters: true, only: None }.without_place();
        assert_eq!(policy, QueuePolicy { fair: true, since: u64::MAX, entry, enters: false, only: None });
    }
}
