//! Looking at a lock, and taking it from whoever holds it: for operators.

use crate::wire::command::Command;
use crate::wire::plan::lock_keys::{LockKeys, digits};
use crate::wire::plan::shared::Shared;
use crate::wire::script::Script;

/// How many readers a node names.
const READERS_MAX: u64 = 100;
/// Longer values are not sent: no client of the plain layout has any. Bytes.
const VALUE_MAX: u64 = 512;

/// Asks what nodes store about the lock whose key is `lock`.
pub(crate) fn inspect(lock: &[u8]) -> Command {
    let Shared { keys, readers } = Shared::of(LockKeys::of(lock.into()));
    let keys = [&*keys.lock, &keys.fence, &keys.waiters, &keys.reservation, &readers];
    Command::of_script(Script::Inspect, &keys, &[&digits(READERS_MAX), &digits(VALUE_MAX)])
}

/// Deletes the lock whose key is `lock` where it has this value, and nowhere else; then it is the next client's turn.
pub(crate) fn take_from_holder(lock: &[u8], value: &[u8]) -> Command {
    let LockKeys { lock, waiters, reservation, .. } = LockKeys::of(lock.into());
    Command::of_script(Script::Release, &[&lock, &waiters, &reservation], &[value])
}

/// Ends the entry of one reader.
pub(crate) fn take_from_reader(lock: &[u8], value: &[u8]) -> Command {
    let Shared { keys: LockKeys { lock, waiters, reservation, .. }, readers } = Shared::of(LockKeys::of(lock.into()));
    Command::of_script(Script::ReleaseShared, &[&lock, &waiters, &reservation, &readers], &[value])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(command: &Command, script: Script, keys: &[&[u8]], args: &[&[u8]]) {
        let (mut sent, mut expected) = (Vec::new(), Vec::new());
        command.write_to(&mut sent, true);
        Command::of_script(script, keys, args).write_to(&mut expected, true);
        assert_eq!(sent.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn an_operators_commands_have_the_keys_and_arguments_that_the_scripts_state() {
        let (fence, list, turn) = (b"quorlock:fence:{a}", b"quorlock:waiters:{a}", b"quorlock:turn:{a}");
        let readers = b"quorlock:readers:{a}";
        same(&inspect(b"a"), Script::Inspect, &[b"a", fence, list, turn, readers], &[b"100", b"512"]);
        same(&take_from_holder(b"a", b"v"), Script::Release, &[b"a", list, turn], &[b"v"]);
        same(&take_from_reader(b"a", b"v"), Script::ReleaseShared, &[b"a", list, turn, readers], &[b"v"]);
    }
}
