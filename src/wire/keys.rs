//! The keys beside a lock: their names.
//!
//! A server that spreads keys over shards does it by *slots*, and runs a script only on keys of one slot. The slot is
//! the CRC of the key, or of its *tag*: the text between the first `{` and the next `}`, if there is any. So what belongs
//! to a lock has the lock's tag; or a tag that is the lock's whole name; or, where no tag can be that, one of the same slot.

use crate::config::RESERVED;

/// The key of a server's record: `scripts/record.lua`. It belongs to no lock.
pub(crate) const RECORD: &[u8] = b"quorlock:record";

/// The slots are the CRC modulo this many.
pub(crate) const SLOTS: u16 = 1 << 14;
/// CRC-16/XMODEM: x^16 + x^12 + x^5 + 1.
const POLYNOMIAL: u16 = 0x1021;
const TOP: u16 = 1 << 15;

/// The key of `kind` beside the lock key `lock`, in the same slot.
///
/// Three forms, each with a kind of its own, so that keys of different locks never meet.
pub(crate) fn beside(kind: &str, lock: &[u8]) -> Vec<u8> {
    let parts: &[&[u8]] = if has_tag(lock) {
        &[b"-tag:", lock]
    } else if !lock.is_empty() && !lock.contains(&b'}') {
        &[b":{", lock, b"}"]
    } else {
        &[b"-slot:{", &tag_for(crc(lock)), b"}:", lock]
    };
    [&[RESERVED, kind.as_bytes()], parts].concat().concat()
}

/// The slot of a key, in a cluster.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let mut behind_first = key.splitn(2, |it| *it == b'{').skip(1);
    let behind = behind_first.next().filter(|_| has_tag(key));
    let tag = behind.and_then(|it| it.split(|it| *it == b'}').next());
    crc(tag.unwrap_or(key)) % SLOTS
}

/// The key that stands for `key`, which belongs to no lock, in one slot of a cluster.
pub(crate) fn in_slot(key: &[u8], slot: u16) -> Vec<u8> {
    [key, b":{", &tag_for(slot), b"}"].concat()
}

/// Whose counter this is, or whose readers' set: the name of a lock, with the prefix; or that of a semaphore, and a slot.
pub(crate) fn owner_of(key: &[u8]) -> Option<(Vec<u8>, Option<u8>)> {
    let text = key.strip_prefix(RESERVED)?;
    let (slot, kind, rest) = if let Some(rest) = text.strip_prefix(b"slot-fence-") {
        let digits = rest.iter().take_while(|it| it.is_ascii_digit()).count();
        let (number, rest) = rest.split_at_checked(digits)?;
        let slot: u8 = std::str::from_utf8(number).ok()?.parse().ok()?;
        (Some(slot), format!("slot-fence-{slot}"), rest)
    } else {
        let kind = ["fence", "readers"]
            .into_iter()
            .find(|it| text.starts_with(it.as_bytes()))?;
        (None, kind.to_owned(), text.get(kind.len()..)?)
    };
    let wrapped = || rest.strip_prefix(b":{")?.strip_suffix(b"}");
    // A tag of three letters or digits stands between.
    let behind_tag = || rest.strip_prefix(b"-slot:{")?.get(3..)?.strip_prefix(b"}:");
    let name = rest
        .strip_prefix(b"-tag:")
        .or_else(wrapped)
        .or_else(behind_tag)?;
    // Anybody can make a key that only looks like one of ours.
    (beside(&kind, name) == key).then(|| (name.to_vec(), slot))
}

fn has_tag(key: &[u8]) -> bool {
    let mut behind_first = key.splitn(2, |it| *it == b'{').skip(1);
    behind_first
        .next()
        .is_some_and(|it| it.contains(&b'}') && !it.starts_with(b"}"))
}

fn crc(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let crc = crc ^ (u16::from(*byte) << 8);
        (0..8).fold(crc, |crc, _| {
            if crc & TOP == 0 {
                crc << 1
            } else {
                (crc << 1) ^ POLYNOMIAL
            }
        })
    })
}

/// A tag of three letters or digits whose slot is that of `crc`.
///
/// After a first byte, two more bytes can make any CRC: calculating backwards finds them. The first byte, and the two bits of
/// the CRC that do not count for the slot, are chosen so that these two are letters or digits. Each slot has such a choice.
fn tag_for(crc: u16) -> [u8; 3] {
    let tags = (b'a'..=b'z').flat_map(|first| {
        [0, 1, 2, 3].map(|open| {
            let wanted = (crc % SLOTS) | (open << 14);
            let back = (0..16).fold(wanted, |crc, _| {
                if crc & 1 == 0 {
                    crc >> 1
                } else {
                    ((crc ^ POLYNOMIAL) >> 1) | TOP
                }
            });
            let [second, third] = (back ^ self::crc(&[first])).to_be_bytes();
            [first, second, third]
        })
    });
    tags.into_iter()
        .find(|it| it.iter().all(u8::is_ascii_alphanumeric))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [&str; 9] = [
        "fence",
        "waiters",
        "turn",
        "slot-0",
        "slot-10",
        "slot-fence-0",
        "slot-fence-10",
        "slot-waiters",
        "slot-turn",
    ];

    /// As Redis does it: what is hashed of a key.
    fn hashed(key: &[u8]) -> &[u8] {
        let Some(open) = key.iter().position(|it| *it == b'{') else {
            return key;
        };
        let (_, behind) = key.split_at(open.saturating_add(1));
        behind
            .iter()
            .position(|it| *it == b'}')
            .filter(|len| *len != 0)
            .map_or(key, |len| &behind[..len])
    }

    /// As Redis does it, bit by bit: the rest of a division of polynomials.
    fn slot(key: &[u8]) -> u32 {
        let bits = hashed(key)
            .iter()
            .chain(&[0, 0])
            .flat_map(|byte| (0..8).rev().map(move |it| byte >> it & 1));
        let rest = bits.fold(0_u32, |rest, bit| {
            let rest = rest << 1 | u32::from(bit);
            if rest < 0x1_0000 {
                rest
            } else {
                rest ^ 0x1_1021
            }
        });
        rest % 16_384
    }

    fn fence(name: &str) -> String {
        String::from_utf8(beside("fence", name.as_bytes())).unwrap()
    }

    #[test]
    fn what_belongs_to_no_lock_has_a_key_in_each_slot() {
        for slot in [0, 1, 5_460, 12_345, 16_383] {
            assert_eq!(self::slot(&in_slot(RECORD, slot)), u32::from(slot));
        }
    }

    #[test]
    fn the_slot_of_these_tests_is_the_documented_one() {
        // The check value of the CRC, and two from the specification of Redis Cluster.
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
    }

    #[test]
    fn a_name_is_the_tag_of_what_is_beside_it_or_has_one_of_its_own() {
        assert_eq!(fence("report"), "quorlock:fence:{report}");
        assert_eq!(fence("a{b"), "quorlock:fence:{a{b}");
        assert_eq!(fence("order:{7}"), "quorlock:fence-tag:order:{7}");
        assert_eq!(fence("{a}"), "quorlock:fence-tag:{a}");
    }

    #[test]
    fn a_name_that_can_be_no_tag_gets_one_of_its_slot() {
        assert_eq!(fence(""), "quorlock:fence-slot:{fHh}:");
        assert_eq!(fence("a}b"), "quorlock:fence-slot:{a9j}:a}b");
    }

    #[test]
    fn every_slot_has_a_tag_that_can_be_read() {
        for slot in 0..SLOTS {
            let tag = tag_for(slot);
            assert!(tag.iter().all(u8::is_ascii_alphanumeric), "{slot}: {tag:?}");
            assert_eq!(self::slot(&tag), u32::from(slot));
        }
    }

    /// Any bytes; and the same with many braces.
    fn name() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            any::<Vec<u8>>(),
            "[{}a:x]{0,8}".prop_map(String::into_bytes)
        ]
    }

    /// What names look like beside which keys are.
    fn likeness() -> impl Strategy<Value = Vec<u8>> {
        let kinds = prop::sample::select(KINDS.to_vec());
        (kinds, "|-tag|-slot|-hex", "[:{}]{0,2}", "[{}a:]{0,4}")
            .prop_map(|(a, b, c, d)| [a, &b, &c, &d].concat().into())
    }

    proptest! {
        #[test]
        fn a_lock_and_what_is_beside_it_are_in_one_slot(name in name()) {
            for kind in KINDS {
                let key = beside(kind, &name);
                prop_assert_eq!(slot(&key), slot(&name), "{}", key.escape_ascii());
                prop_assert_eq!(u32::from(slot_of(&key)), slot(&key));
            }
        }

        #[test]
        fn different_locks_never_share_a_key(a in prop_oneof![name(), likeness()], b in prop_oneof![name(), likeness()]) {
            let wrapped = [b"{", &a[..], b"}"].concat();
            for (one, other) in KINDS.into_iter().flat_map(|it| KINDS.map(|other| (it, other))) {
                prop_assert_eq!(beside(one, &a) == beside(other, &b), one == other && a == b);
                prop_assert_ne!(beside(one, &a), beside(other, &wrapped));
            }
        }

        #[test]
        fn whose_a_key_is_can_be_told_from_it(name in prop_oneof![name(), likeness()], slot: u8) {
            prop_assert_eq!(owner_of(&beside("fence", &name)), Some((name.clone(), None)));
            prop_assert_eq!(owner_of(&beside("readers", &name)), Some((name.clone(), None)));
            let of_slot = beside(&format!("slot-fence-{slot}"), &name);
            prop_assert_eq!(owner_of(&of_slot), Some((name.clone(), Some(slot))));
            prop_assert_eq!(owner_of(&beside("waiters", &name)), None);
            prop_assert!(name.starts_with(RESERVED) || owner_of(&name).is_none());
        }

        #[test]
        fn no_key_beside_a_lock_is_a_name_that_a_lock_may_have(name in prop_oneof![name(), likeness()]) {
            for kind in KINDS {
                prop_assert!(beside(kind, &name).starts_with(RESERVED));
            }
        }
    }
}
