//! The schedule of everything with a due time, for one thread.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::nodes::fanout::Enqueued;
use crate::observer::HeldLock;
use crate::sys::sync::{Condvar, Mutex, MutexGuard};
use crate::time::{self, Moment, Now, Tick};

/// Entries due within this time of each other are handled together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Interval of the clock comparison while there are entries: the thread's clock does not show time
/// in suspend and steps of the wall clock, and a lease that they ended has to be announced.
pub(crate) const COMPARE: Duration = Duration::from_secs(1);
/// Shortest time between two moments at which everything is made due.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Difference of the clocks that counts as a step.
const STEP: Duration = Duration::from_millis(50);

/// Something with a due time.
pub(crate) trait Due: Send + Sync {
    /// Unique in the schedule.
    fn id(&self) -> u64;

    /// Handles the due time, or an early one with others, and enters itself for the next one.
    /// Called without a due time in the schedule.
    ///
    /// Commands go into `batch`, written once for all due entries.
    fn on_due(self: Arc<Self>, batch: &mut Enqueued);

    /// Time until its end. The soonest end is handled first.
    fn ends_in(&self, now: Moment) -> Duration;

    /// Its row in the list of held locks, if held; `is_failing`: and if no majority confirmed its
    /// last extension.
    fn hold(&self, is_failing: bool) -> Option<HeldLock>;

    /// Ends it after the stop of the schedule. Whether that is new, to be announced by
    /// [`Due::announce_stop`].
    fn stop(self: Arc<Self>) -> bool;

    fn announce_stop(self: Arc<Self>);
}

/// See the module.
#[derive(Default)]
pub(crate) struct Schedule {
    queue: Mutex<DueQueue>,
    wake: Condvar,
}

#[derive(Default)]
struct DueQueue {
    /// By time and id.
    due: BTreeSet<(Tick, u64)>,
    /// All entries until removed, by id, including those being handled, with their last due time.
    all_known: BTreeMap<u64, (Tick, Arc<dyn Due>)>,
    /// The sleep of the thread, if it does, and its end, if it has one.
    sleep: Option<Option<Tick>>,
    /// Everything is due now.
    all: bool,
    /// But not before then.
    all_from: Option<Tick>,
    stopped: bool,
}

impl Schedule {
    /// Enters something due after `wait`, in place of its old due time.
    ///
    /// Wakes the thread only if it would come too late: with a steady stream of short locks of the
    /// same ttl it wakes a few times per ttl, not once per lock.
    ///
    /// RACE: T1 wins a lock; T2 runs [`Schedule::stop`] without finding it; T1 enters it. Therefore
    /// this is false then, and T1 ends it.
    #[must_use]
    pub(crate) fn enter(&self, due: Arc<dyn Due>, wait: Duration) -> bool {
        let at = time::deadline(wait);
        let mut queue = self.queue.lock();
        if queue.stopped {
            return false;
        }
        let id = due.id();
        let known = queue.all_known.entry(id).or_insert((at, due));
        let old = std::mem::replace(&mut known.0, at);
        queue.due.remove(&(old, id));
        queue.due.insert((at, id));
        let is_late = |until: Option<Tick>| until.is_none_or(|it| at < it);
        let wakes = queue.sleep.is_some_and(is_late);
        self.unlock(queue, wakes);
        true
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut queue = self.queue.lock();
        let removed = queue.all_known.remove(&id);
        if let Some((at, _)) = removed {
            queue.due.remove(&(at, id));
        }
        // Dropped with nothing locked.
        drop(queue);
        drop(removed);
    }

    /// The held locks, oldest first; `is_failing`: those without a majority for their last
    /// extension.
    pub(crate) fn held(&self, is_failing: bool) -> Vec<HeldLock> {
        let queue = self.queue.lock();
        let known: Vec<_> = queue
            .all_known
            .values()
            .map(|it| Arc::clone(&it.1))
            .collect();
        // Each has a mutex of its own, to be locked with nothing else locked.
        drop(queue);
        let mut held: Vec<_> = known.iter().filter_map(|it| it.hold(is_failing)).collect();
        // Not by id: a handed-over lock is older.
        held.sort_by_key(|it| Reverse(it.age));
        held
    }

    /// Makes everything due now.
    pub(crate) fn make_all_due(&self) {
        let mut queue = self.queue.lock();
        queue.all = true;
        let wakes = queue.sleep.is_some();
        self.unlock(queue, wakes);
    }

    /// Wakes with the queue unlocked: otherwise the thread is handed the mutex before it runs, and
    /// the next caller waits for it.
    fn unlock(&self, queue: MutexGuard<'_, DueQueue>, wakes: bool) {
        drop(queue);
        if wakes {
            self.wake.notify_one();
        }
    }

    /// Ends the thread and all entries, including those being handled. The results have ended by
    /// that.
    pub(crate) fn stop(&self) -> Vec<Arc<dyn Due>> {
        let mut queue = self.queue.lock();
        queue.stopped = true;
        queue.due.clear();
        let known = std::mem::take(&mut queue.all_known);
        let wakes = queue.sleep.is_some();
        self.unlock(queue, wakes);
        let known = known.into_values().map(|it| it.1);
        known.filter(|it| Arc::clone(it).stop()).collect()
    }

    /// Sleeps until entries are due and takes them; `None` after a stop. `last`: the caller's,
    /// between calls.
    pub(crate) fn next(&self, last: &mut Now) -> Option<Vec<Arc<dyn Due>>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopped {
                return None;
            }
            let now = time::tick();
            let mut all = queue.all && queue.all_from.is_none_or(|it| it <= now);
            if all {
                queue.all = false;
                queue.all_from = now.checked_add(LOOK_PAUSE);
            }
            all |= clocks_differ(last, now);
            let first = queue.due.first().map(|it| it.0);
            if first.is_some_and(|it| all || it <= now) {
                let mut due = std::mem::take(&mut queue.due);
                if !all && let Some(end) = now.checked_add(TOGETHER) {
                    queue.due = due.split_off(&(end, 0));
                }
                let of_id = |id| Some(Arc::clone(&queue.all_known.get(&id)?.1));
                return Some(due.into_iter().filter_map(|it| of_id(it.1)).collect());
            }
            let compare = first.and_then(|it| Some(it.min(now.checked_add(COMPARE)?)));
            let all_from = queue.all_from.filter(|_| queue.all);
            let until = compare.into_iter().chain(all_from).min();
            queue.sleep = Some(until);
            self.wake.wait(&mut queue, until);
            queue.sleep = None;
        }
    }
}

/// Whether the clocks of leases advanced further since `last` than the clock of sleeps.
fn clocks_differ(last: &mut Now, tick: Tick) -> bool {
    let now = Now {
        moment: Moment::now(),
        tick,
    };
    let last = std::mem::replace(last, now);
    tick.saturating_duration_since(last.tick)
        .saturating_add(STEP)
        < now.moment.since(last.moment)
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{FencingToken, LockName};
    use crate::observer::ObservedLock;

    struct Thing(u64);

    impl Due for Thing {
        fn id(&self) -> u64 {
            self.0
        }

        fn on_due(self: Arc<Self>, _batch: &mut Enqueued) {}

        fn ends_in(&self, _now: Moment) -> Duration {
            Duration::ZERO
        }

        fn hold(&self, _is_failing: bool) -> Option<HeldLock> {
            let lock = ObservedLock::new(&LockName::new(b"x"), None);
            Some(HeldLock {
                lock,
                token: FencingToken(self.0),
                age: Duration::ZERO,
                left: Duration::ZERO,
                missing_on: Vec::new(),
            })
        }

        fn stop(self: Arc<Self>) -> bool {
            false
        }

        fn announce_stop(self: Arc<Self>) {}
    }

    #[test]
    fn an_entry_in_work_counts_as_held_until_its_removal() {
        let schedule = Schedule::default();
        let things: Vec<_> = (0..2).map(|id| Arc::new(Thing(id))).collect();
        things
            .iter()
            .for_each(|it| assert!(schedule.enter(Arc::<Thing>::clone(it), Duration::ZERO)));
        let held = || {
            schedule
                .held(false)
                .iter()
                .map(|it| it.token.get())
                .collect::<Vec<_>>()
        };

        let due = schedule.next(&mut Now::read()).unwrap();
        assert_eq!((due.len(), held()), (2, vec![0, 1]));
        schedule.remove(0);
        assert_eq!(held(), [1]);
        assert!(schedule.enter(Arc::<Thing>::clone(&things[1]), Duration::ZERO));
        schedule.stop();
        assert_eq!(held(), [0; 0]);
    }

    #[test]
    fn nearly_due_entries_are_taken_with_the_due_ones() {
        let schedule = Schedule::default();
        let waits = [Duration::ZERO, TOGETHER, Duration::from_secs(3_600)];
        for (id, wait) in (0..).zip(waits) {
            assert!(schedule.enter(Arc::new(Thing(id)), wait));
        }

        // On a slow machine the second is due by then.
        let due = schedule.next(&mut Now::read()).unwrap();

        assert_eq!(due.iter().map(|it| it.id()).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(schedule.queue.lock().due.len(), 1);
    }
}
