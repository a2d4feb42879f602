//! Release of locks that a node has handed over to a missing call, and of the places of missing
//! calls in its lists.
//!
//! Without the release the node blocks such a lock for a second. A publisher could cause any number
//! of releases, so their number has a limit.

use std::collections::HashSet;
use std::sync::Arc;

use crate::answer::Answer;
use crate::ids::NodeId;
use crate::session::pending_command::ReplyHandler;
use crate::sys::sync::Mutex;

/// Largest number of releases per node at a time, and of bytes of their keys and values. Beyond the
/// limits nothing is sent, and the next call in the list gets the lock a second later.
const GIVEN_BACK_MAX: usize = 64;
const BYTES_MAX: usize = 64 * 1024;

/// Releases under way to one node: value and key of each lock.
#[derive(Default)]
pub(crate) struct GiveBacks {
    locks: Mutex<HashSet<Arc<[u8]>>>,
}

impl GiveBacks {
    /// Begins the release of the lock `key` with this value, until the result is dropped. `None` if
    /// it is under way already, or the limits are reached.
    pub(crate) fn begin(
        self: &Arc<Self>,
        value: &[u8],
        key: &[u8],
    ) -> Option<Arc<dyn ReplyHandler>> {
        let lock: Arc<[u8]> = [value, b" ", key].concat().into();
        let mut locks = self.locks.lock();
        let bytes = locks
            .iter()
            .map(|it| it.len())
            .sum::<usize>()
            .saturating_add(lock.len());
        if GIVEN_BACK_MAX <= locks.len() || BYTES_MAX < bytes || locks.contains(&lock) {
            return None;
        }
        locks.insert(Arc::clone(&lock));
        Some(Arc::new(GiveBack {
            of: Arc::clone(self),
            lock,
        }))
    }
}

/// Waits for the answer.
struct GiveBack {
    of: Arc<GiveBacks>,
    lock: Arc<[u8]>,
}

impl ReplyHandler for GiveBack {
    fn deliver(&self, _node: NodeId, _answer: Answer, _reached: bool) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        self.of.locks.lock().remove(&self.lock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> impl Iterator<Item = Vec<u8>> {
        (0..).map(|it: u32| it.to_string().into_bytes())
    }

    #[test]
    fn h7_a_lock_is_given_back_once_at_a_time() {
        let gives = Arc::new(GiveBacks::default());
        let first = gives.begin(b"1", b"a");
        assert!(first.is_some() && gives.begin(b"1", b"a").is_none());
        assert!(
            gives.begin(b"1", b"b").is_some() && gives.begin(b"2", b"a").is_some(),
            "another lock, or another owner"
        );
        drop(first);
        assert!(gives.begin(b"1", b"a").is_some());
    }

    #[test]
    fn h7_concurrent_give_backs_have_a_limit() {
        let gives = Arc::new(GiveBacks::default());
        let mut under_way: Vec<_> = values()
            .map_while(|it| gives.begin(&it, b"a"))
            .take(10_000)
            .collect();
        assert_eq!(under_way.len(), GIVEN_BACK_MAX);
        under_way.pop();
        assert!(gives.begin(b"the next", b"a").is_some());
    }

    /// Whoever may publish chooses both.
    #[test]
    fn h7_values_and_keys_of_give_backs_have_a_length_limit() {
        let gives = Arc::new(GiveBacks::default());
        let long = vec![0; BYTES_MAX];
        assert!(gives.begin(&long, b"").is_none() && gives.begin(b"", &long).is_none());
        let almost = long.get(1..).unwrap();
        for (value, key) in [(almost, &b""[..]), (b"", almost)] {
            let _all = gives.begin(value, key).unwrap();
            assert!(gives.begin(b"x", b"").is_none());
        }
    }
}
