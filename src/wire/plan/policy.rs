//! How a command deals with the clients that wait for the lock.

use crate::answer::Which;
use crate::ids::ClientId;
use crate::wire::command::Command;
use crate::wire::plan::lock_keys::digits;

/// How an acquire treats the clients that wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueuePolicy {
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
        QueuePolicy {
            since: LAST,
            enters: false,
            ..self
        }
    }
}

impl QueuePolicy {
    /// The argument that says it, the last of the command. `member`: what stands for a waiter in the list.
    pub(super) fn arg(self, member: impl Fn(Waiter) -> Vec<u8>) -> Vec<u8> {
        let member = self.entry.map(|it| member(it.waiter)).unwrap_or_default();
        let life = self
            .entry
            .filter(|_| self.enters)
            .map(|it| digits(it.life))
            .unwrap_or_default();
        [
            &digits(self.since)[..],
            &life,
            &member,
            Command::IS_NOTIFIED,
        ]
        .join(&b' ')
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

    /// The same for a call that waits for what `together` stands for.
    pub(super) fn to_value_for(self, together: &[u8]) -> Vec<u8> {
        [&self.client().to_value()[..], b"/", together].concat()
    }

    fn client(self) -> ClientId {
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
    Stay {
        entry: QueueEntry,
        since: u64,
        which: Which,
    },
    /// A call of the client that began at `since` comes next: its acquire follows on the same connection.
    HandOver { waiter: Waiter, since: u64 },
}

impl QueueUpdate {
    /// The arguments that say it, behind all others of the command. `member`: what stands for a waiter in a list.
    /// `has_several_lists`: says in which of them a call stays.
    pub(super) fn args(
        self,
        member: impl Fn(Waiter) -> Vec<u8>,
        has_several_lists: bool,
    ) -> Vec<Vec<u8>> {
        match self {
            QueueUpdate::None => Vec::new(),
            QueueUpdate::Leave(waiter) => vec![member(waiter)],
            QueueUpdate::HandOver { waiter, since } => vec![member(waiter), digits(since)],
            QueueUpdate::Stay {
                entry,
                since,
                which,
            } => {
                let mut args = vec![member(entry.waiter), digits(since), digits(entry.life)];
                if has_several_lists {
                    args.push(digits(u64::from(which.unwrap_or(0)).saturating_add(1)));
                }
                args.push(Command::IS_NOTIFIED.to_vec());
                args
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_a_place_is_behind_all_others_and_enters_no_list() {
        let entry = Some(QueueEntry {
            waiter: Waiter::Client(ClientId::draw().unwrap()),
            life: 9,
        });
        let policy = QueuePolicy {
            since: 5,
            entry,
            enters: true,
            only: None,
        }
        .without_place();
        assert_eq!(
            policy,
            QueuePolicy {
                since: u64::MAX,
                entry,
                enters: false,
                only: None
            }
        );
    }
}
