//! One schedule for anything that can be due, on which one thread sleeps.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::nodes::fanout::Enqueued;
use crate::observer::HeldLock;
use crate::sys::sync::{AtomicU64, Condvar, Mutex, MutexGuard};
use crate::time::{self, Moment, Now, Tick};

/// What is due within this time of each other is looked after together.
const TOGETHER: Duration = Duration::from_millis(20);
/// While anything is entered, the clocks are compared this often: time spent in suspend, and steps of the wall clock, are
/// not seen by the clock that the thread sleeps on, and a lease that they ended has to be announced.
pub(crate) const COMPARE: Duration = Duration::from_secs(1);
/// Everything is made due no more often, whatever nodes say about their clocks.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// How far the clocks may differ before it counts as a step.
const STEP: Duration = Duration::from_millis(50);

/// Something that can be due.
pub(crate) trait Due: Send + Sync {
    /// Where it is entered.
    fn entry(&self) -> &ScheduleEntry;

    /// It is due, or nearly so and others are, and it is not entered any more. Says after what time it is due again; `None` if
    /// it is over, or enters itself.
    ///
    /// What it sends goes into `batch`: it is written once for all that is due together.
    fn on_due(self: Arc<Self>, now: Now, batch: &mut Enqueued) -> Option<Duration>;

    /// How long it is until it is over: what is over soonest is looked after first.
    fn ends_in(&self, now: Moment) -> Duration;

    /// What it is, if it is a lock that is held.
    fn hold(&self) -> Option<HeldLock>;

    /// Whether it is a lock whose last extension no majority has confirmed.
    fn is_unextended(&self) -> bool {
        false
    }

    /// The schedule has stopped, so it will never be due: ends it. The result announces that, unless it was over.
    fn on_stop(self: Arc<Self>) -> Option<Announcement>;
}

/// See [`Due::on_stop`].
pub(crate) type Announcement = Box<dyn FnOnce()>;

/// Where something is entered in the schedule.
#[derive(Debug)]
pub(crate) struct ScheduleEntry {
    id: u64,
    /// In nanoseconds since the start of the schedule; 0 if it is not entered.
    at: AtomicU64,
}

impl ScheduleEntry {
    /// `id`: no two of one schedule have the same.
    pub(crate) fn new(id: u64) -> ScheduleEntry {
        ScheduleEntry {
            id,
            at: AtomicU64::new(0),
        }
    }
}

/// When each thing is due.
pub(crate) struct Schedule {
    start: Tick,
    queue: Mutex<DueQueue>,
    wake: Condvar,
}

#[derive(Default)]
struct DueQueue {
    /// By time, in nanoseconds since the start, and id.
    due: BTreeMap<(u64, u64), Arc<dyn Due>>,
    /// All that was entered and not removed, by id: also what is just being looked after.
    all_known: BTreeMap<u64, Weak<dyn Due>>,
    /// The thread sleeps until then; `None` if it sleeps without end or is awake.
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

    /// Enters something that is due after `wait`, in place of its old entry.
    ///
    /// The thread is woken only if it would come too late: with a steady stream of short locks of the same ttl it
    /// wakes a few times per ttl, not once per lock.
    ///
    /// RACE: a call wins a lock, [`Schedule::stop`] does not find it, the call enters it; therefore it ends here.
    pub(crate) fn enter(&self, due: Arc<dyn Due>, wait: Duration) {
        // Zero means "not entered".
        let at = self.nanos(time::tick()).saturating_add(nanos(wait)).max(1);
        let mut queue = self.queue.lock();
        if queue.stopped {
            drop(queue);
            if let Some(announce) = due.on_stop() {
                announce();
            }
            return;
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

    /// The locks that are held, the oldest first.
    pub(crate) fn held(&self) -> Vec<HeldLock> {
        let mut held: Vec<_> = self.known().iter().filter_map(|it| it.hold()).collect();
        // Not by their ids: a write lock that has become a read lock has a new one.
        held.sort_by_key(|it| Reverse(it.age));
        held
    }

    /// The held locks whose last extension no majority has confirmed.
    pub(crate) fn unextended(&self) -> Vec<HeldLock> {
        self.known()
            .iter()
            .filter(|it| it.is_unextended())
            .filter_map(|it| it.hold())
            .collect()
    }

    /// Each has a mutex of its own, which is locked with nothing else locked.
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

    /// Woken with the queue unlocked, or the thread would be given the mutex before it runs, and whoever comes next would wait
    /// for that.
    fn unlock(&self, queue: MutexGuard<'_, DueQueue>, wakes: bool) {
        drop(queue);
        if wakes {
            self.wake.notify_one();
        }
    }

    /// Ends the thread and all that is known, also what it is just looking after. The results announce that.
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

    /// Sleeps until something is due, and takes all that is; `None` once stopped. `last` is the caller's, between calls.
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

/// Whether, since `last`, more time has passed on a lease's clocks than on the one that we sleep on.
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
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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

        fn on_due(self: Arc<Self>, _now: Now, _batch: &mut Enqueued) -> Option<Duration> {
            None
        }

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
            .for_each(|it| schedule.enter(Arc::<Thing>::clone(it), Duration::ZERO));
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
        schedule.enter(Arc::<Thing>::clone(&things[1]), Duration::ZERO);
        schedule.stop();
        assert_eq!(held(), [0; 0]);
    }

    #[test]
    fn what_is_nearly_due_is_taken_along_with_what_is_due_and_nothing_else() {
        let schedule = Schedule::new();
        let waits = [Duration::ZERO, TOGETHER, Duration::from_secs(3_600)];
        for (id, wait) in (0..).zip(waits) {
            schedule.enter(Arc::new(Thing(ScheduleEntry::new(id))), wait);
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
