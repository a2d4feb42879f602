//! Which locks this thread holds, so that it can take them again.
//!
//! Invariant: an entry has a hold for as long as the hold has a guard. The last guard removes the entry, so entries do not
//! pile up, and an entry without a hold counts for nothing.
//!
//! The table is not borrowed while other code runs: a release blocks, ends managers and calls loggers, and each of these may
//! use the table.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use crate::engine::Engine;
use crate::error::AcquireError;
use crate::ids::LockName;
use crate::lock::LockGuard;

thread_local! {
    static HOLDS: RefCell<BTreeMap<Key, Weak<ThreadHold>>> = const { RefCell::new(BTreeMap::new()) };
}

/// One lock of one manager. The prefix is the manager's, so the name says which key it is.
///
/// The address says which manager. Another manager could get the address of one that was dropped, but a hold keeps its
/// manager alive, and an entry without a hold does not count.
#[derive(Clone, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Key {
    engine: *const Engine,
    name: LockName,
}

impl Key {
    pub(super) fn new(engine: &Arc<Engine>, name: &LockName) -> Key {
        Key {
            engine: Arc::as_ptr(engine),
            name: name.clone(),
        }
    }
}

/// One hold, shared by the thread's guards: they are counted by their `Rc`.
pub(super) struct ThreadHold {
    // Dropped first: a thread that is already releasing the lock does not hold it any more.
    entry: Entry,
    pub(super) guard: LockGuard,
}

impl ThreadHold {
    /// The guard, which the thread does not find any more: it is about to release the lock.
    pub(super) fn into_guard(self) -> LockGuard {
        let ThreadHold { entry, guard } = self;
        drop(entry);
        guard
    }
}

/// The place of a hold in the table; removes it when dropped.
struct Entry(Key);

impl Drop for Entry {
    fn drop(&mut self) {
        // A guard in another thread-local may outlive the table: then there is nothing to remove.
        let removed = HOLDS.try_with(|it| {
            let mut holds = it.borrow_mut();
            // Only if the entry is still this hold's: where it was lost, a logger that ran since may have taken the lock again.
            let is_over = holds.get(&self.0).is_some_and(|it| it.strong_count() == 0);
            is_over.then(|| holds.remove(&self.0))
        });
        drop(removed);
    }
}

/// This thread's hold of a lock, if there is one. It is counted by its `Rc`: make a guard of it.
pub(super) fn find(key: &Key) -> Result<Option<Rc<ThreadHold>>, AcquireError> {
    let found = HOLDS.try_with(|it| it.borrow().get(key).and_then(Weak::upgrade));
    found.map_err(|_| AcquireError::ThreadEnding)
}

/// Enters a hold that was just won.
pub(super) fn enter(key: Key, guard: LockGuard) -> Result<Rc<ThreadHold>, AcquireError> {
    let hold = Rc::new(ThreadHold {
        entry: Entry(key.clone()),
        guard,
    });
    let replaced = HOLDS.try_with(|it| it.borrow_mut().insert(key, Rc::downgrade(&hold)));
    // Without an entry the hold could not be found again, and the thread would wait for itself: rather release it.
    replaced.map(drop).map_err(|_| AcquireError::ThreadEnding)?;
    Ok(hold)
}

/// How many entries this thread has.
#[cfg(test)]
pub(super) fn entries() -> usize {
    HOLDS.with(|it| it.borrow().len())
}
