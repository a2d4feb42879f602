//! The schedule of everything with a due time, for one thread.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::nodes::fanout::Enqueued;
use crate::ids::wide;
use crate::observer::HeldLock;
use crate::sys::sync::{AtomicU64, Condvar, Mutex, MutexGuard};
use crate::time::{self, Moment, Now, Tick};

/// Entries due within this time of each other are handled together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Interval of the clock comparison while there are entries: the thread's clock does not show time in suspend and steps
/// of the wall clock, and a lease that they ended has to be announced.
pub(crate) const COMPARE: Duration = Duration::from_secs(1);
/// Shortest time between two moments at which everything is made due.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Difference of the clocks that counts as a step.
const STEP: Duration = Duration::from_millis(50);

/// Something with a due time.
pub(crate) trait Due: Send + Sync {
    /// Its entry.
    fn entry(&self) -> &ScheduleEntry;

    /// Handles the due time, or an early one with others, and enters itself for the next one. Called without an entry in
    /// the schedule.
    ///
    /// Commands go into `batch`, written once for all due entries.
    fn on_due(self: Arc<Self>, batch: &mut Enqueued);

    /// Time until its end. The soonest end is handled first.
    fn ends_in(&self, now: Moment) -> Duration;

    /// Its row in the list of held locks, if held.
    fn hold(&self) -> Option<HeldLock>;

    /// Whether no majority confirmed its last extension.
    fn is_unextended(&self) -> bool {
        false
    }

    /// Ends it after the stop of the schedule. The result announces the end, if new.
    fn on_stop(self: Arc<Self>) -> Option<Announcement>;
}

/// See [`Due::on_stop`].
pub(crate) type Announcement = Box<dyn FnOnce()>;

/// A place in the schedule.
#[derive(Debug)]
pub(crate) struct ScheduleEntry {
    id: u64,
    /// Nanoseconds since the start of the schedule; 0 without an entry.
    at: AtomicU64,
}

impl ScheduleEntry {
    /// `id`: unique in the schedule.
    pub(crate) fn new(id: u64) -> ScheduleEntry {
        ScheduleEntry {
            id,
            at: AtomicU64::new(0),
        }
    }
}

/// See the module.
pub(crate) struct Schedule {
    start: Tick,
    queue: Mutex<DueQueue>,
    wake: Condvar,
}

#[derive(Default)]
struct DueQueue {
    /// By time, in nanoseconds since the start, and id.
    due: BTreeMap<(u64, u64), Arc<dyn Due>>,
    /// All entries until removed, by id, including those being handled.
    all_known: BTreeMap<u64, Weak<dyn Due>>,
    /// End of the thread's sleep; `None` for a sleep without end or an awake thread.
    sleeps_until: Option<u64>,
    asleep: bool,
    /// Everything is due now.
    all: bool,
    /// But not before then.
    all_from: u64,
    stopped: bool,
}

impl Schedule {
    pub(crate) fn new() -> Schedule {
        Schedule {
            start: time::tick(),
            queue: Mutex::default(),
            wake: Condvar::default(),
        }
    }

    /// Enters something due after `wait`, in place of its old entry.
    ///
    /// Wakes the thread only if it would come too late: with a steady stream of short locks of the same ttl it wakes a
    /// few times per ttl, not once per lock.
    ///
    /// RACE: T1 wins a lock; T2 runs [`Schedule::stop`] without finding it; T1 enters it. Therefore this is false then, and
    /// T1 ends it.
    #[must_use]
    pub(crate) fn enter(&self, due: Arc<dyn Due>, wait: Duration) -> bool {
        // Zero means "not entered".
        let at = self.nanos(time::tick()).saturating_add(nanos(wait)).max(1);
        let mut queue = self.queue.lock();
        if queue.stopped {
            return false;
        }
        let entry = due.entry();
        let id = entry.id;
        let old = entry.at.swap(at, Ordering::Relaxed);
        queue.due.remove(&(old, id));
        queue
            .all_known
            .entry(id)
            .or_insert_with(|| Arc::downgrade(&due));
        queue.due.insert((at, id), due);
        let too_late = queue.asleep && queue.sleeps_until.is_none_or(|it| at < it);
        self.unlock(queue, too_late);
        true
    }

    pub(crate) fn remove(&self, entry: &ScheduleEntry) {
        let removed = {
            let mut queue = self.queue.lock();
            let old = entry.at.swap(0, Ordering::Relaxed);
            queue.all_known.remove(&entry.id);
            queue.due.remove(&(old, entry.id))
        };
        // Dropped with nothing locked.
        drop(removed);
    }

    /// The held locks, oldest first.
    pub(crate) fn held(&self) -> Vec<HeldLock> {
        let mut held: Vec<_> = self.known().iter().filter_map(|it| it.hold()).collect();
        // Not by id: a handed-over lock is older.
        held.sort_by_key(|it| Reverse(it.age));
        held
    }

    /// The held locks without a majority for their last extension.
    pub(crate) fn unextended(&self) -> Vec<HeldLock> {
        self.known()
            .iter()
            .filter(|it| it.is_unextended())
            .filter_map(|it| it.hold())
            .collect()
    }

    /// Each has a mutex of its own, to be locked with nothing else locked.
    fn known(&self) -> Vec<Arc<dyn Due>> {
        self.queue
            .lock()
            .all_known
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Makes everything due now.
    pub(crate) fn make_all_due(&self) {
        let mut queue = self.queue.lock();
        queue.all = true;
        let wakes = queue.asleep;
        self.unlock(queue, wakes);
    }

    /// Wakes with the queue unlocked: otherwise the thread is handed the mutex before it runs, and the next caller
    /// waits for it.
    fn unlock(&self, queue: MutexGuard<'_, DueQueue>, wakes: bool) {
        drop(queue);
        if wakes {
            self.wake.notify_one();
        }
    }

    /// Ends the thread and all entries, including those being handled. The results announce these ends.
    pub(crate) fn stop(&self) -> Vec<Announcement> {
        let mut queue = self.queue.lock();
        queue.stopped = true;
        // Dropped with nothing locked.
        let _due = std::mem::take(&mut queue.due);
        let known = std::mem::take(&mut queue.all_known);
        let asleep = queue.asleep;
        self.unlock(queue, asleep);
        known
            .values()
            .filter_map(|it| it.upgrade()?.on_stop())
            .collect()
    }

    fn nanos(&self, at: Tick) -> u64 {
        nanos(at.saturating_duration_since(self.start))
    }

    /// Sleeps until entries are due and takes them; `None` after a stop. `last`: the caller's, between calls.
    pub(crate) fn next(&self, last: &mut Now) -> Option<Vec<Arc<dyn Due>>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopped {
                return None;
            }
            let tick = time::tick();
            let now = self.nanos(tick);
            let all = queue.all && queue.all_from <= now;
            if all {
                queue.all = false;
                queue.all_from = now.saturating_add(nanos(LOOK_PAUSE));
            }
            let limit = if clocks_differ(last, tick) || all {
                u64::MAX
            } else {
                now
            };
            if queue
                .due
                .first_key_value()
                .is_some_and(|((at, _), _)| *at <= limit)
            {
                let rest = queue
                    .due
                    .split_off(&(limit.saturating_add(nanos(TOGETHER)), 0));
                let due = std::mem::replace(&mut queue.due, rest);
                due.values()
                    .for_each(|it| it.entry().at.store(0, Ordering::Relaxed));
                return Some(due.into_values().collect());
            }
            let first = queue.due.first_key_value().map(|((at, _), _)| *at);
            let first = first.map(|it| it.min(now.saturating_add(nanos(COMPARE))));
            let all_from = queue.all.then_some(queue.all_from);
            queue.sleeps_until = [first, all_from].into_iter().flatten().min();
            queue.asleep = true;
            let left = |until: u64| Duration::from_nanos(until.saturating_sub(now));
            let until = queue.sleeps_until.map(|it| time::deadline(left(it)));
            self.wake.wait(&mut queue, until);
            queue.asleep = false;
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

fn nanos(time: Duration) -> u64 {
    wide(time.as_nanos())
}

#[cfg(not(quorlock_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{FencingToken, LockName};
    use crate::observer::ObservedLock;

    struct Thing(ScheduleEntry);

    impl Due for Thing {
        fn entry(&self) -> &ScheduleEntry {
            &self.0
        }

        fn on_due(self: Arc<Self>, _batch: &mut Enqueued) {}

        fn ends_in(&self, _now: Moment) -> Duration {
            Duration::ZERO
        }

        fn hold(&self) -> Option<HeldLock> {
            let lock = ObservedLock::new(&LockName::new(b"x"), None);
            Some(HeldLock {
                lock,
                token: FencingToken(self.0.id),
                age: Duration::ZERO,
                left: Duration::ZERO,
                missing_on: Vec::new(),
            })
        }

        fn on_stop(self: Arc<Self>) -> Option<Announcement> {
            None
        }
    }

    #[test]
    fn what_is_just_being_looked_after_is_held_until_it_is_removed() {
        let schedule = Schedule::new();
        let things: Vec<_> = (0..2)
            .map(|id| Arc::new(Thing(ScheduleEntry::new(id))))
            .collect();
        things
            .iter()
            .for_each(|it| assert!(schedule.enter(Arc::<Thing>::clone(it), Duration::ZERO)));
        let held = || {
            schedule
                .held()
                .iter()
                .map(|it| it.token.get())
                .collect::<Vec<_>>()
        };

        let due = schedule.next(&mut Now::read()).unwrap();
        assert_eq!((due.len(), held()), (2, vec![0, 1]));
        schedule.remove(&things[0].0);
        assert_eq!(held(), [1]);
        assert!(schedule.enter(Arc::<Thing>::clone(&things[1]), Duration::ZERO));
        schedule.stop();
        assert_eq!(held(), [0; 0]);
    }

    #[test]
    fn what_is_nearly_due_is_taken_along_with_what_is_due_and_nothing_else() {
        let schedule = Schedule::new();
        let waits = [Duration::ZERO, TOGETHER, Duration::from_secs(3_600)];
        for (id, wait) in (0..).zip(waits) {
            assert!(schedule.enter(Arc::new(Thing(ScheduleEntry::new(id))), wait));
        }

        // On a slow machine the second is due by then.
        let due = schedule.next(&mut Now::read()).unwrap();

        assert_eq!(
            due.iter().map(|it| it.entry().id).collect::<Vec<_>>(),
            [0, 1]
        );
        assert_eq!(schedule.queue.lock().due.len(), 1);
    }
}
