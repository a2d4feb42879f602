//! Looking for locks whose names nobody knows: for operators.

use std::collections::BTreeSet;

use crate::config::RESERVED;
use crate::wire::command::Command;
use crate::wire::keys::{RECORD, digits, owner_of};
use crate::wire::script::Script;

/// How many keys a node returns at a time: as many as an array of a reply may have, and some less.
pub(crate) const KEYS_MAX: usize = 60;
/// How long each is at most, and all of them together: what a reply may have, and some less. Bytes.
const KEY_MAX: u64 = 60_000;
const TOTAL_MAX: u64 = 200_000;

/// A lock, or a slot of a semaphore: its name with the prefix, and the slot.
pub(crate) type FoundName = (Vec<u8>, Option<u8>);

/// What of a node's keys is looked at next.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ScanPlace {
    pub(crate) cursor: u64,
    /// How many keys, about.
    pub(crate) count: u64,
}

/// Asks for the keys of ours that stand at this place.
pub(crate) fn list(place: ScanPlace) -> Command {
    let ours = [RESERVED, b"*"].concat();
    let max = digits(u64::try_from(KEYS_MAX).unwrap_or(0));
    let args = [
        digits(place.cursor),
        digits(place.count),
        ours,
        max,
        digits(KEY_MAX),
        digits(TOTAL_MAX),
    ];
    let args: Vec<_> = args.iter().map(Vec::as_slice).collect();
    Command::of_script(Script::List, &[RECORD], &args)
}

/// Whose these keys are, once each.
pub(crate) fn names(keys: &[Vec<u8>]) -> BTreeSet<FoundName> {
    keys.iter().filter_map(|it| owner_of(it)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_have_the_keys_and_arguments_that_the_scripts_state() {
        let written = |command: &Command| command.packed().escape_ascii().to_string();
        let args: [&[u8]; 6] = [b"17", b"500", b"quorlock:*", b"60", b"60000", b"200000"];
        let expected = Command::of_script(Script::List, &[b"quorlock:record"], &args);
        assert_eq!(
            written(&list(ScanPlace {
                cursor: 17,
                count: 500
            })),
            written(&expected)
        );
    }

    #[test]
    fn a_name_is_there_once_whatever_stands_beside_it() {
        let keys = [
            "quorlock:fence:a",
            "quorlock:readers:a",
            "quorlock:slot-fence-2:a",
            "quorlock:record",
        ];
        let expected = BTreeSet::from([(b"a".to_vec(), None), (b"a".to_vec(), Some(2))]);
        assert_eq!(names(&keys.map(|it| it.as_bytes().to_vec())), expected);
    }
}
