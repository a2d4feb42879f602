//! Waiting lists that are left because a node announced a release for which nobody here waits.
//!
//! Without the answer to a notice the node would keep the lock for this manager for a second. But whoever can send notices
//! could have any number of answers queued here, so there is an end to them.

use std::collections::HashSet;
use std::sync::Arc;

use crate::answer::Answer;
use crate::ids::NodeId;
use crate::session::pending_command::ReplyHandler;
use crate::sys::sync::Mutex;

/// How many lists of one node are left at a time, and how long the names of their locks are together. Beyond that nothing
/// is said, and the next one in the list is notified a second later.
const LISTS_MAX: usize = 64;
const BYTES_MAX: usize = 64 * 1024;

/// The lists of one node that are being left: their locks' keys.
#[derive(Debug, Default)]
pub(crate) struct ListExits {
    keys: Mutex<HashSet<Arc<[u8]>>>,
}

impl ListExits {
    /// Notes that the list of the lock `key` is left now, until the result, which wants the answer, is dropped. `None` if
    /// nothing has to be said, or too much is being said already.
    ///
    /// RACE: the list is being left, and the node announces another release of that lock. It has not run the command to
    /// leave by then: its answer would have come before the notice, on the same connection. So that command will end this
    /// turn as well.
    pub(crate) fn begin(self: &Arc<Self>, key: &[u8]) -> Option<Arc<dyn ReplyHandler>> {
        let mut keys = self.keys.lock();
        let bytes = keys
            .iter()
            .map(|it| it.len())
            .sum::<usize>()
            .saturating_add(key.len());
        if LISTS_MAX <= keys.len() || BYTES_MAX < bytes || keys.contains(key) {
            return None;
        }
        let key: Arc<[u8]> = key.into();
        keys.insert(Arc::clone(&key));
        Some(Arc::new(ListExit {
            of: Arc::clone(self),
            key,
        }))
    }
}

/// Waits for the answer.
struct ListExit {
    of: Arc<ListExits>,
    key: Arc<[u8]>,
}

impl ReplyHandler for ListExit {
    fn deliver(&self, _node: NodeId, _answer: Answer, _reached: bool) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}

impl Drop for ListExit {
    fn drop(&mut self) {
        self.of.keys.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> impl Iterator<Item = Vec<u8>> {
        (0..).map(|it: u32| it.to_string().into_bytes())
    }

    #[test]
    fn h7_the_list_of_a_lock_is_left_once_at_a_time() {
        let leaving = Arc::new(ListExits::default());
        let first = leaving.begin(b"a");
        assert!(first.is_some() && leaving.begin(b"a").is_none());
        drop(first);
        assert!(leaving.begin(b"a").is_some());
    }

    #[test]
    fn h7_there_is_an_end_to_the_lists_that_are_left_at_a_time() {
        let leaving = Arc::new(ListExits::default());
        let mut under_way: Vec<_> = names()
            .map_while(|it| leaving.begin(&it))
            .take(10_000)
            .collect();
        assert_eq!(under_way.len(), LISTS_MAX);
        under_way.pop();
        assert!(leaving.begin(b"the next").is_some());
    }

    #[test]
    fn h7_there_is_an_end_to_the_length_of_their_names() {
        let leaving = Arc::new(ListExits::default());
        assert!(leaving.begin(&vec![0; BYTES_MAX + 1]).is_none());
        let _long = leaving.begin(&vec![0; BYTES_MAX]);
        assert!(leaving.begin(b"x").is_none());
    }
}
