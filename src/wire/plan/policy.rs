//! How a command deals with the clients that wait for the lock.

use crate::answer::Which;
use crate::ids::ClientId;

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
    /// A call of the client that began at `since` goes on waiting, and enters the list: of several locks, that of the one
    /// that is in the way.
    Stay { entry: QueueEntry, since: u64, which: Which },
    /// A call of the client that began at `since` comes next: its acquire follows on the same connection.
    HandOver { client: ClientId, since: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_a_place_is_behind_all_others_and_enters_no_list() {
        let entry = Some(QueueEntry { client: ClientId::draw().unwrap(), life: 9 });
        let policy = QueuePolicy { fair: false, since: 5, entry, enters: true }.without_place();
        assert_eq!(policy, QueuePolicy { fair: true, since: u64::MAX, entry, enters: false });
    }
}
