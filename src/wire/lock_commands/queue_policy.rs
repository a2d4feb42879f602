//! How commands treat the calls that wait.

use crate::answer::Which;
use crate::ids::ClientId;
use crate::wire::command::push_digits;
use crate::wire::keys::KeyTtls;

/// What commands say of slots where there are none.
pub(super) const NO_SLOTS: &[u8] = b"-";

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

/// When a call began that is behind all others.
const LAST: u64 = u64::MAX;

/// The entry of a client's call in a waiting list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueueEntry {
    pub(crate) client: ClientId,
    /// Life of the list after it, in milliseconds.
    pub(crate) life: u64,
}

/// What a release offers to the next owner.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Offer {
    /// A fencing token; 0 for none.
    pub(crate) token: u64,
    /// The fencing token of the owner that releases, if its acquire has proposed another one to the nodes.
    pub(crate) raised: Option<u64>,
}

impl Offer {
    /// As releases have it. `keep`: see `scripts/release.lua`.
    pub(super) fn text(self, ttls: KeyTtls, keep: &[u8]) -> Vec<u8> {
        let Offer { token, raised } = self;
        let mut text = Vec::with_capacity(48);
        for number in [token, ttls.fence, ttls.first, raised.unwrap_or(0)] {
            push_digits(&mut text, number);
            text.push(b' ');
        }
        text.extend_from_slice(keep);
        text
    }
}

/// What a release changes in the waiting list, besides handing the lock over to the first call in it.
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
    /// See [`LockCommands::member`](crate::wire::LockCommands::member).
    pub(crate) member: Vec<u8>,
    /// It gives back what it was granted: to whoever began before it, and never to itself.
    pub(crate) yields: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_a_place_is_behind_all_others_and_enters_no_list() {
        let entry = Some(QueueEntry {
            client: ClientId::draw().unwrap(),
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
