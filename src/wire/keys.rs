//! The keys of a lock: its name with the prefix, and beside it `quorlock:KIND:NAME`, where NAME is
//! the lock's key.
//!
//! KIND has no colon, so keys of different locks never collide. In a cluster the prefix of all
//! locks has a hash tag, which is part of each NAME: all keys are in one slot.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::slice;
use std::sync::Arc;

use crate::config::RESERVED;

/// The key of a server's record: `scripts/record.lua`. It belongs to no lock.
pub(crate) const RECORD: &[u8] = b"quorlock:record";

/// The key of `kind` beside the lock key `lock`.
pub(crate) fn beside(kind: &str, lock: &[u8]) -> Vec<u8> {
    [RESERVED, kind.as_bytes(), b":", lock].concat()
}

/// The form of `key`, which belongs to no lock, in the slot of a hash tag.
pub(crate) fn in_slot_of(tag: &[u8], key: &[u8]) -> Vec<u8> {
    [key, b":{", tag, b"}"].concat()
}

/// The hash tag of a key: the text between the first `{` and the next `}`, if not empty.
pub(crate) fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let behind = key.splitn(2, |byte| *byte == b'{').nth(1)?;
    let end = behind.iter().position(|byte| *byte == b'}')?;
    behind.get(..end).filter(|tag| !tag.is_empty())
}

/// Owner of a counter or a set of readers: the name of a lock, with the prefix; or of a semaphore,
/// with a slot.
pub(crate) fn owner_of(key: &[u8]) -> Option<(Vec<u8>, Option<u8>)> {
    let (kind, name) = kind_of(key)?;
    if matches!(kind, b"fence" | b"readers") {
        return Some((name.to_vec(), None));
    }
    let (name, slot) = slot_of(key, b"slot-fence-")?;
    Some((name.to_vec(), Some(slot)))
}

/// The kind and the name in a key of ours.
fn kind_of(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = key.strip_prefix(RESERVED)?;
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (kind, name) = text.split_at_checked(colon)?;
    Some((kind, name.get(1..)?))
}

/// The name of a semaphore, and the slot, in a key whose kind is `before` and the number of a slot.
pub(super) fn slot_of<'a>(key: &'a [u8], before: &[u8]) -> Option<(&'a [u8], u8)> {
    let (kind, name) = kind_of(key)?;
    let digits = std::str::from_utf8(kind.strip_prefix(before)?).ok()?;
    let slot: u8 = digits.parse().ok()?;
    // Anybody can make a key that resembles ours.
    (slot.to_string() == digits).then_some((name, slot))
}

/// A lock key and the keys beside it.
#[derive(Clone, Debug)]
pub(crate) struct LockKeys {
    pub(super) lock: Arc<[u8]>,
    pub(super) fence: Vec<u8>,
    /// The waiting list.
    pub(super) waiting: Vec<u8>,
    /// Exists while a call may wait.
    pub(super) mark: Vec<u8>,
    pub(super) readers: Vec<u8>,
}

/// Life of keys on a node, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct KeyTtls {
    /// Life of a fencing counter; 0 for no expiry.
    pub(crate) fence: u64,
    /// Life of a handed-over lock.
    pub(crate) handed_over_ms: u64,
}

impl LockKeys {
    pub(super) fn of(lock: Arc<[u8]>) -> LockKeys {
        let [fence, waiting, mark, readers] =
            ["fence", "waiting", "mark", "readers"].map(|kind| beside(kind, &lock));
        LockKeys {
            lock,
            fence,
            waiting,
            mark,
            readers,
        }
    }

    /// All keys, in the order of the scripts.
    pub(super) fn all(&self) -> Vec<&[u8]> {
        keys_of(slice::from_ref(self), false)
    }

    /// Keys of a slot of the semaphore `name`. It has no readers, and shares list and mark with all
    /// slots.
    pub(super) fn of_slot(name: &[u8], slot: u8) -> LockKeys {
        let [lock, fence, readers] = ["slot", "slot-fence", "slot-readers"]
            .map(|kind| beside(&format!("{kind}-{slot}"), name));
        let [waiting, mark] = ["slot-waiting", "slot-mark"].map(|kind| beside(kind, name));
        LockKeys {
            lock: lock.into(),
            fence,
            waiting,
            mark,
            readers,
        }
    }
}

/// All keys of these locks, in the order of the scripts: see `scripts/acquire.lua`. Slots share the
/// list and the mark of the first.
pub(super) fn keys_of(locks: &[LockKeys], are_slots: bool) -> Vec<&[u8]> {
    let lists = locks.len().min(if are_slots { 1 } else { usize::MAX });
    let mut keys: Vec<&[u8]> = Vec::with_capacity(locks.len().saturating_mul(5).saturating_add(1));
    keys.extend(locks.iter().map(|it| &*it.lock));
    keys.extend(locks.iter().map(|it| &*it.fence));
    keys.push(RECORD);
    keys.extend(locks.iter().take(lists).map(|it| &*it.mark));
    keys.extend(locks.iter().take(lists).map(|it| &*it.waiting));
    if !are_slots {
        keys.extend(locks.iter().map(|it| &*it.readers));
    }
    keys
}

/// Stands for several keys: in the queues of a manager, and in the notices of its calls. No lock
/// has it.
pub(super) fn multi_key(kind: &str, names: &[&[u8]]) -> Arc<[u8]> {
    // Need not be the same in all versions: it is unique within one manager.
    let mut hasher = DefaultHasher::new();
    names.iter().for_each(|it| it.hash(&mut hasher));
    [
        RESERVED,
        format!("{kind}:{:016x}", hasher.finish()).as_bytes(),
    ]
    .concat()
    .into()
}

pub(super) fn digits(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [&str; 9] = [
        "fence",
        "waiting",
        "mark",
        "slot-0",
        "slot-10",
        "slot-fence-0",
        "slot-fence-10",
        "slot-waiting",
        "slot-mark",
    ];

    #[test]
    fn a_hash_tag_is_read_as_servers_read_it() {
        for (key, tag) in [
            (&b"{locks}a"[..], Some(&b"locks"[..])),
            (b"app:{locks}:{b}", Some(b"locks")),
            (b"{{a}}", Some(b"{a")),
            (b"{}{a}", None),
            (b"a}b{", None),
            (b"", None),
        ] {
            assert_eq!(hash_tag(key), tag, "{}", key.escape_ascii());
        }
        assert_eq!(in_slot_of(b"locks", RECORD), b"quorlock:record:{locks}");
    }

    fn name() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            any::<Vec<u8>>(),
            "(fence|readers|slot-fence-1)?[:{}a]{0,6}".prop_map(String::into_bytes)
        ]
    }

    proptest! {
        #[test]
        fn keys_beside_a_lock_have_the_hash_tag_of_its_prefix(name in name()) {
            let lock = [b"{locks}", &name[..]].concat();
            for kind in KINDS {
                let key = beside(kind, &lock);
                prop_assert_eq!(hash_tag(&key), Some(&b"locks"[..]));
            }
        }

        #[test]
        fn different_locks_never_share_a_key(a in name(), b in name()) {
            for (one, other) in KINDS.into_iter().flat_map(|one| KINDS.map(|other| (one, other))) {
                prop_assert_eq!(beside(one, &a) == beside(other, &b), one == other && a == b);
            }
        }

        #[test]
        fn a_key_shows_its_lock_and_slot(name in name(), slot: u8) {
            prop_assert_eq!(owner_of(&beside("fence", &name)), Some((name.clone(), None)));
            prop_assert_eq!(owner_of(&beside("readers", &name)), Some((name.clone(), None)));
            let of_slot = beside(&format!("slot-fence-{slot}"), &name);
            prop_assert_eq!(owner_of(&of_slot), Some((name.clone(), Some(slot))));
            prop_assert_eq!(owner_of(&beside("waiting", &name)), None);
            prop_assert!(name.starts_with(RESERVED) || owner_of(&name).is_none());
        }

        #[test]
        fn no_key_beside_a_lock_is_a_name_that_a_lock_may_have(name in name()) {
            for kind in KINDS {
                prop_assert!(beside(kind, &name).starts_with(RESERVED));
            }
        }
    }
}
