//! Looking at a lock, and taking it from whoever holds it: for operators.

use crate::wire::command::Command;
use crate::wire::keys::{beside, digits};
use crate::wire::script::Script;

/// How many readers a node names.
const READERS_MAX: u64 = 100;
/// Longer values are not sent: no client of the plain layout has any. Bytes.
const VALUE_MAX: u64 = 512;

/// What is looked at: the keys of a lock, or of one slot of a semaphore.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    lock: Vec<u8>,
    fence: Vec<u8>,
    waiters: Vec<u8>,
    reservation: Vec<u8>,
    readers: Vec<u8>,
}

impl Looked {
    /// `name`: with the prefix. `slot`: of a semaphore called that, if it is none of a lock.
    pub(crate) fn new(name: &[u8], slot: Option<u8>) -> Looked {
        let key = |kind: &str| beside(kind, name);
        match slot {
            None => Looked {
                lock: name.to_vec(),
                fence: key("fence"),
                waiters: key("waiters"),
                reservation: key("turn"),
                readers: key("readers"),
            },
            // It has no readers, and the list of all slots together.
            Some(slot) => Looked {
                lock: key(&format!("slot-{slot}")),
                fence: key(&format!("slot-fence-{slot}")),
                waiters: key("slot-waiters"),
                reservation: key("slot-turn"),
                readers: key(&format!("slot-readers-{slot}")),
            },
        }
    }

    /// Asks what nodes store about it.
    pub(crate) fn inspect(&self) -> Command {
        let keys = [
            &self.lock[..],
            &self.fence,
            &self.waiters,
            &self.reservation,
            &self.readers,
        ];
        Command::of_script(
            Script::Inspect,
            &keys,
            &[&digits(READERS_MAX), &digits(VALUE_MAX)],
        )
    }

    /// Deletes it where it has this value, and nowhere else; then it is the next client's turn.
    pub(crate) fn take_from_holder(&self, value: &[u8]) -> Command {
        Command::of_script(
            Script::Release,
            &[&self.lock, &self.waiters, &self.reservation],
            &[value],
        )
    }

    /// Ends the entry of one reader.
    pub(crate) fn take_from_reader(&self, value: &[u8]) -> Command {
        let keys = [
            &self.lock[..],
            &self.waiters,
            &self.reservation,
            &self.readers,
        ];
        Command::of_script(Script::ReleaseShared, &keys, &[value])
    }

    /// Deletes the counter where it still is this number. It is no lock's key, so nobody stands in line for it.
    pub(crate) fn forget(&self, counter: u64) -> Command {
        let [list, turn] = ["waiters", "turn"].map(|it| beside(it, &self.fence));
        Command::of_script(
            Script::Release,
            &[&self.fence, &list, &turn],
            &[&digits(counter)],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(command: &Command, script: Script, keys: &[&[u8]], args: &[&[u8]]) {
        let [sent, expected] = [command, &Command::of_script(script, keys, args)]
            .map(|it| it.packed().escape_ascii().to_string());
        assert_eq!(sent, expected);
    }

    #[test]
    fn an_operators_commands_have_the_keys_and_arguments_that_the_scripts_state() {
        let (fence, list, turn) = (
            b"quorlock:fence:a",
            b"quorlock:waiters:a",
            b"quorlock:turn:a",
        );
        let readers = b"quorlock:readers:a";
        let lock = Looked::new(b"a", None);
        same(
            &lock.inspect(),
            Script::Inspect,
            &[b"a", fence, list, turn, readers],
            &[b"100", b"512"],
        );
        same(
            &lock.take_from_holder(b"v"),
            Script::Release,
            &[b"a", list, turn],
            &[b"v"],
        );
        same(
            &lock.take_from_reader(b"v"),
            Script::ReleaseShared,
            &[b"a", list, turn, readers],
            &[b"v"],
        );
        let (list, turn) = (
            b"quorlock:waiters:quorlock:fence:a",
            b"quorlock:turn:quorlock:fence:a",
        );
        same(
            &lock.forget(7),
            Script::Release,
            &[fence, list, turn],
            &[b"7"],
        );
    }

    #[test]
    fn a_slot_is_looked_at_by_its_own_key_and_counter_and_the_list_of_all_slots() {
        let slot = Looked::new(b"a", Some(7));
        let (key, fence, none) = (
            b"quorlock:slot-7:a",
            b"quorlock:slot-fence-7:a",
            b"quorlock:slot-readers-7:a",
        );
        let (list, turn) = (b"quorlock:slot-waiters:a", b"quorlock:slot-turn:a");
        same(
            &slot.inspect(),
            Script::Inspect,
            &[key, fence, list, turn, none],
            &[b"100", b"512"],
        );
        same(
            &slot.take_from_holder(b"v"),
            Script::Release,
            &[key, list, turn],
            &[b"v"],
        );
        let list = b"quorlock:waiters:quorlock:slot-fence-7:a";
        let turn = b"quorlock:turn:quorlock:slot-fence-7:a";
        same(
            &slot.forget(7),
            Script::Release,
            &[fence, list, turn],
            &[b"7"],
        );
    }
}
