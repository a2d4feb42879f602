//! Looking at a lock, and taking it from whoever holds it: for operators.

use crate::wire::command::Command;
use crate::wire::keys::{KeyTtls, LockKeys, digits};
use crate::wire::lock_commands::queue_policy::{NO_SLOTS, Offer};
use crate::wire::script::Script;

/// How many readers a node names.
const READERS_MAX: u64 = 100;
/// Longer values are not sent: no client of the plain layout has any. Bytes.
const VALUE_MAX: u64 = 512;

impl LockKeys {
    /// What is looked at: a lock, or one slot of a semaphore. `name`: with the prefix.
    pub(crate) fn named(name: &[u8], slot: Option<u8>) -> LockKeys {
        match slot {
            None => LockKeys::of(name.into()),
            Some(slot) => LockKeys::of_slot(name, slot),
        }
    }

    /// Asks what nodes store about it.
    pub(crate) fn inspect(&self) -> Command {
        let LockKeys {
            lock,
            fence,
            waiting,
            readers,
            ..
        } = self;
        Command::of_script(
            Script::Inspect,
            &[&**lock, fence, waiting, readers],
            &[&digits(READERS_MAX), &digits(VALUE_MAX)],
        )
    }

    /// Ends it where it has this value, or the entry of the reader with it, and nowhere else; then it is the next call's turn.
    pub(crate) fn take(&self, value: &[u8], reads: bool, ttls: KeyTtls) -> Command {
        let script = if reads {
            Script::ReleaseShared
        } else {
            Script::Release
        };
        // Whoever comes next asks for a token of its own.
        let offer = Offer::default().text(ttls, NO_SLOTS);
        Command::of_script(script, &self.all(), &[value, &offer])
    }

    /// Deletes the counter where it still is this number. It is no lock's key, so nobody stands in line for it.
    pub(crate) fn forget(&self, counter: u64) -> Command {
        let counter_as_lock = LockKeys::of(self.fence[..].into());
        let ttls = KeyTtls { fence: 0, first: 1 };
        counter_as_lock.take(&digits(counter), false, ttls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::keys::RECORD;

    fn same(command: &Command, script: Script, keys: &[&[u8]], args: &[&[u8]]) {
        let [sent, expected] = [command, &Command::of_script(script, keys, args)]
            .map(|it| it.packed().escape_ascii().to_string());
        assert_eq!(sent, expected);
    }

    const TTLS: KeyTtls = KeyTtls {
        fence: 9,
        first: 800,
    };

    #[test]
    fn an_operators_commands_have_the_keys_and_arguments_that_the_scripts_state() {
        let (fence, list, mark) = (
            b"quorlock:fence:a",
            b"quorlock:waiting:a",
            b"quorlock:mark:a",
        );
        let readers = b"quorlock:readers:a";
        let lock = LockKeys::named(b"a", None);
        same(
            &lock.inspect(),
            Script::Inspect,
            &[b"a", fence, list, readers],
            &[b"100", b"512"],
        );
        let keys: [&[u8]; 6] = [b"a", fence, RECORD, mark, list, readers];
        same(
            &lock.take(b"v", false, TTLS),
            Script::Release,
            &keys,
            &[b"v", b"0 9 800 0 -"],
        );
        same(
            &lock.take(b"v", true, TTLS),
            Script::ReleaseShared,
            &keys,
            &[b"v", b"0 9 800 0 -"],
        );
        forgets(&lock, "quorlock:fence:a");
    }

    /// The counter `fence` stands in place of a lock, with a list of its own, in which nobody is.
    fn forgets(looked: &LockKeys, fence: &str) {
        let beside = ["fence", "waiting", "mark", "readers"];
        let [of_fence, list, mark, readers] = beside.map(|kind| format!("quorlock:{kind}:{fence}"));
        let keys = [
            fence.as_bytes(),
            of_fence.as_bytes(),
            RECORD,
            mark.as_bytes(),
            list.as_bytes(),
            readers.as_bytes(),
        ];
        same(
            &looked.forget(7),
            Script::Release,
            &keys,
            &[b"7", b"0 0 1 0 -"],
        );
    }

    #[test]
    fn a_slot_is_looked_at_by_its_own_key_and_counter_and_the_list_of_all_slots() {
        let slot = LockKeys::named(b"a", Some(7));
        let (key, fence, none) = (
            b"quorlock:slot-7:a",
            b"quorlock:slot-fence-7:a",
            b"quorlock:slot-readers-7:a",
        );
        let (list, mark) = (b"quorlock:slot-waiting:a", b"quorlock:slot-mark:a");
        same(
            &slot.inspect(),
            Script::Inspect,
            &[key, fence, list, none],
            &[b"100", b"512"],
        );
        same(
            &slot.take(b"v", false, TTLS),
            Script::Release,
            &[key, fence, RECORD, mark, list, none],
            &[b"v", b"0 9 800 0 -"],
        );
        forgets(&slot, "quorlock:slot-fence-7:a");
    }
}
