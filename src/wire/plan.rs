//! The keys of one lock and the commands on them.
//!
//! The lock key is exactly the name, with the manager's prefix: so every client of the plain Redlock layout on the
//! same nodes excludes us, and we it. Keys of ours beside it begin with `quorlock:` and the kind, *before* the name,
//! so that no two names can meet: a name with a suffix could be another name.

use crate::config::RESERVED;
use crate::ids::OwnerToken;
use crate::wire::command::{Command, Kind};

/// What a round of one lock sends: the commands of a lock kind, as data.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    lock: Vec<u8>,
    fence: Vec<u8>,
    /// Life of the fencing counter in milliseconds; 0 for no end.
    fence_life: u64,
}

impl Plan {
    /// A mutex called `name`. `fence_life_ms` is 0 for a counter that never expires.
    pub(crate) fn mutex(prefix: &[u8], name: &[u8], fence_life_ms: u64) -> Plan {
        let lock = [prefix, name].concat();
        let fence = beside("fence", &lock);
        Plan { lock, fence, fence_life: fence_life_ms }
    }

    /// Length of the lock key, in bytes.
    pub(crate) fn key_len(&self) -> usize {
        self.lock.len()
    }

    /// Whether the lock key looks like one of the keys that are kept beside locks.
    pub(crate) fn is_reserved(&self) -> bool {
        self.lock.starts_with(RESERVED)
    }

    pub(crate) fn acquire(&self, owner: OwnerToken, ttl_ms: u64, proposal: u64) -> Command {
        let args = [&owner.to_value()[..], &digits(ttl_ms), &digits(proposal), &digits(self.fence_life)];
        Command::script(Kind::Acquire, &[&self.lock, &self.fence], &args)
    }

    pub(crate) fn raise(&self, owner: OwnerToken, token: u64) -> Command {
        let args = [&owner.to_value()[..], &digits(token), &digits(self.fence_life)];
        Command::script(Kind::Raise, &[&self.lock, &self.fence], &args)
    }

    pub(crate) fn extend(&self, owner: OwnerToken, ttl_ms: u64, token: u64) -> Command {
        let args = [&owner.to_value()[..], &digits(ttl_ms), &digits(token), &digits(self.fence_life)];
        Command::script(Kind::Extend, &[&self.lock, &self.fence], &args)
    }

    pub(crate) fn release(&self, owner: OwnerToken) -> Command {
        Command::script(Kind::Release, &[&self.lock], &[&owner.to_value()])
    }
}

/// The key of `kind` beside the lock key `lock`.
///
/// The braces are what Redis hashes by, so that all keys of a lock stay together wherever that matters. A key that is
/// empty or has braces of its own would break that, and is written in hex, under a kind of its own so that it cannot
/// meet a key that looks like hex.
fn beside(kind: &str, lock: &[u8]) -> Vec<u8> {
    let plain = !lock.is_empty() && !lock.iter().any(|it| matches!(it, b'{' | b'}'));
    let mut key = RESERVED.to_vec();
    key.extend_from_slice(kind.as_bytes());
    if plain {
        key.extend_from_slice(b":{");
        key.extend_from_slice(lock);
    } else {
        key.extend_from_slice(b"-hex:{x");
        key.extend(lock.iter().flat_map(|it| format!("{it:02x}").into_bytes()));
    }
    key.push(b'}');
    key
}

fn digits(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fence(name: &[u8]) -> String {
        Plan::mutex(b"", name, 0).fence.escape_ascii().to_string()
    }

    #[test]
    fn the_lock_key_is_the_name_and_keys_beside_it_put_the_kind_first() {
        let plan = Plan::mutex(b"app:", b"report", 0);
        assert_eq!(plan.lock, b"app:report");
        assert_eq!(plan.fence, b"quorlock:fence:{app:report}");
    }

    #[test]
    fn names_that_would_break_the_braces_are_written_in_hex() {
        assert_eq!(fence(b""), "quorlock:fence-hex:{x}");
        assert_eq!(fence(b"a}b"), "quorlock:fence-hex:{x617d62}");
    }

    #[test]
    fn reserved_names_are_recognised_with_their_prefix() {
        assert!(Plan::mutex(b"", b"quorlock:fence:{a}", 0).is_reserved());
        assert!(Plan::mutex(b"quor", b"lock:x", 0).is_reserved());
        assert!(!Plan::mutex(b"app:", b"quorlock:x", 0).is_reserved());
    }

    proptest! {
        #[test]
        fn two_names_never_share_a_counter(a: Vec<u8>, b: Vec<u8>) {
            prop_assert_eq!(a == b, beside("fence", &a) == beside("fence", &b));
        }

        #[test]
        fn names_of_braces_and_hex_never_share_a_counter(a in "[{}x0-9a-f]{0,6}", b in "[{}x0-9a-f]{0,6}") {
            prop_assert_eq!(a == b, beside("fence", a.as_bytes()) == beside("fence", b.as_bytes()));
        }
    }
}
