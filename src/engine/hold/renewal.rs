//! The renewal thread: one for all held locks, and it waits for none of them.
//!
//! It sleeps until the first lease is due, puts the extensions of all that are due in line, wakes each node once, and
//! sleeps again. Answers are dealt with by the workers' threads, which enter the lease in the schedule anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::hold::held::{HeldLock, Look};
use crate::engine::nodes::drive::LINGER;
use crate::engine::nodes::outgoing::Enqueued;
use crate::engine::round::pending::Pending;
use crate::engine::shared::Shared;
use crate::error::Lost;
use crate::logic::tally::ExtendRound;
use crate::sys::logging::error;
use crate::sys::sync::{Condvar, Mutex};
use crate::time::{self, Moment, Tick};

/// Leases that are due within this time of each other are extended together.
const TOGETHER: Duration = Duration::from_millis(20);
/// While locks are held, the clocks are compared this often: time spent in suspend, and steps of the wall clock, are
/// not seen by the clock that the thread sleeps on, and a lease that they ended has to be announced.
const COMPARE: Duration = Duration::from_secs(1);
/// All leases are looked at no more often, whatever nodes say about their clocks.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// How far the clocks may differ before it counts as a step.
const STEP: Duration = Duration::from_millis(50);

/// When each held lock has to be looked at.
pub(crate) struct Schedule {
    start: Tick,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    /// By time, in nanoseconds since the start, and lease.
    due: BTreeMap<(u64, u64), Arc<HeldLock>>,
    /// The thread sleeps until then; `None` if it sleeps without end or is awake.
    sleeps_until: Option<u64>,
    asleep: bool,
    /// Somebody wants the thread to look around, now.
    nudged: bool,
    /// Every lease is to be looked at, due or not.
    all: bool,
    /// And may be from then on.
    all_from: u64,
    stopped: bool,
}

impl Schedule {
    pub(crate) fn new() -> Schedule {
        Schedule { start: time::tick(), queue: Mutex::default(), wake: Condvar::new() }
    }

    /// Enters a lease, to be looked at after `wait`, in place of its old entry.
    ///
    /// The thread is woken only if it would come too late: with a steady stream of short locks of the same ttl it
    /// wakes a few times per ttl, not once per lock.
    ///
    /// RACE: a lease that is being looked after is not entered, so [`Schedule::stop`] does not return it. Whoever enters
    /// it again after that learns here that nobody will look after it, and ends it.
    pub(crate) fn plan(&self, lock: &Arc<HeldLock>, wait: Duration) {
        if !self.enter(lock, wait) {
            lock.lose(Lost::ShutDown);
        }
    }

    /// False once stopped.
    fn enter(&self, lock: &Arc<HeldLock>, wait: Duration) -> bool {
        // Zero means "not entered".
        let at = self.nanos(time::tick()).saturating_add(nanos(wait)).max(1);
        let mut queue = self.queue.lock();
        if queue.stopped {
            return false;
        }
        let old = lock.scheduled.swap(at, Ordering::Relaxed);
        queue.due.remove(&(old, lock.id));
        queue.due.insert((at, lock.id), Arc::clone(lock));
        if queue.asleep && queue.sleeps_until.is_none_or(|it| at < it) {
            self.wake.notify_one();
        }
        true
    }

    pub(crate) fn remove(&self, lock: &HeldLock) {
        let removed = {
            let mut queue = self.queue.lock();
            let old = lock.scheduled.swap(0, Ordering::Relaxed);
            queue.due.remove(&(old, lock.id))
        };
        // Dropped with nothing locked.
        drop(removed);
    }

    /// Makes the thread look around once, leases or no leases.
    pub(crate) fn nudge(&self) {
        self.rouse(|queue| queue.nudged = true);
    }

    /// Makes the thread look at every lease: what they stand on has changed.
    pub(crate) fn look_at_all(&self) {
        self.rouse(|queue| queue.all = true);
    }

    fn rouse(&self, why: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue.lock();
        why(&mut queue);
        if queue.asleep {
            self.wake.notify_one();
        }
    }

    /// Ends the thread. The leases that are still entered come back.
    pub(crate) fn stop(&self) -> Vec<Arc<HeldLock>> {
        let mut queue = self.queue.lock();
        queue.stopped = true;
        self.wake.notify_one();
        std::mem::take(&mut queue.due).into_values().collect()
    }

    fn nanos(&self, at: Tick) -> u64 {
        nanos(at.saturating_duration_since(self.start))
    }

    /// Sleeps until leases are due, and takes them; `None` once stopped. With `at_most` it comes back after that time,
    /// and in any case after a nudge, with none.
    fn next(&self, clocks: &mut (Tick, Moment), at_most: Option<Duration>) -> Option<Vec<Arc<HeldLock>>> {
        let mut queue = self.queue.lock();
        let back_at = at_most.map(|it| self.nanos(time::tick()).saturating_add(nanos(it)));
        loop {
            if queue.stopped {
                return None;
            }
            let tick = time::tick();
            let now = self.nanos(tick);
            let all = queue.all && queue.all_from <= now;
            if all {
                (queue.all, queue.all_from) = (false, now.saturating_add(nanos(LOOK_PAUSE)));
            }
            let limit = if clocks_differ(clocks, tick) || all { u64::MAX } else { now };
            if queue.due.first_key_value().is_some_and(|((at, _), _)| *at <= limit) {
                let rest = queue.due.split_off(&(limit.saturating_add(nanos(TOGETHER)), 0));
                let due = std::mem::replace(&mut queue.due, rest);
                due.values().for_each(|it| it.scheduled.store(0, Ordering::Relaxed));
                return Some(due.into_values().collect());
            }
            if std::mem::take(&mut queue.nudged) || back_at.is_some_and(|it| it <= now) {
                return Some(Vec::new());
            }
            let first = queue.due.first_key_value().map(|((at, _), _)| *at);
            let first = first.map(|it| it.min(now.saturating_add(nanos(COMPARE))));
            let all_from = queue.all.then_some(queue.all_from);
            queue.sleeps_until = [first, back_at, all_from].into_iter().flatten().min();
            queue.asleep = true;
            match queue.sleeps_until {
                Some(until) => {
                    self.wake.wait_for(&mut queue, Duration::from_nanos(until.saturating_sub(now)));
                }
                None => self.wake.wait(&mut queue),
            }
            queue.asleep = false;
        }
    }
}

/// Whether, since the last call, more time has passed on a lease's clocks than on the one that we sleep on.
fn clocks_differ(clocks: &mut (Tick, Moment), tick: Tick) -> bool {
    let now = Moment::now();
    let (last_tick, last) = std::mem::replace(clocks, (tick, now));
    tick.saturating_duration_since(last_tick).saturating_add(STEP) < now.since(last)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The thread's work.
pub(crate) fn run(shared: &Arc<Shared>) {
    let mut clocks = (time::tick(), Moment::now());
    let mut rounds_seen = 0;
    let (wheel, nodes) = shared.fanout.wheel();
    while let Some(due) = shared.schedule.next(&mut clocks, wheel.is_lingering().then_some(LINGER)) {
        if wheel.is_lingering() {
            wheel.look_after(nodes, &mut rounds_seen);
        }
        survive(shared, &due, || look_after(shared, &due));
    }
}

/// Does the `work` for the leases that are `due`, and outlives a bug in it.
fn survive(shared: &Shared, due: &[Arc<HeldLock>], work: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        // Their leases end at their deadline, visibly; everybody else's go on.
        error!("the renewal thread panicked and goes on; please report this");
        for lock in due {
            shared.schedule.plan(lock, COMPARE);
        }
    }
}

fn look_after(shared: &Arc<Shared>, due: &[Arc<HeldLock>]) {
    let (now, tick) = (Moment::now(), time::tick());
    let mut batch = Enqueued::default();
    for lock in due {
        let mut look = lock.look_after(now, tick);
        if let Look::Close(pending) = &look {
            close(lock, pending);
            look = Look::Nothing;
        }
        match look {
            Look::Nothing | Look::Close(_) => {}
            Look::At(wait) => shared.schedule.plan(lock, wait),
            Look::Sent { enqueued, again_in } => {
                shared.schedule.plan(lock, again_in);
                batch.merge(enqueued);
            }
        }
    }
    shared.fanout.hand_over(batch, false);
}

/// Ends an extension that has timed out; its end enters the lease in the schedule anew.
fn close(lock: &Arc<HeldLock>, pending: &Arc<Pending<ExtendRound>>) {
    if !pending.close() {
        // RACE: a worker has decided it in this moment. Its end is dealt with there; entering the lease here as well
        // costs one look more.
        lock.plan_next(false, Moment::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::{Engine, Won};
    use crate::ids::{FencingToken, LockName, NodeSet, OwnerToken};
    use crate::wire::{Address, KeyTtls, Plan};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A manager that never talks to its node.
    fn engine() -> Engine {
        Engine::start(Config::default(), vec![Address::parse("redis://127.0.0.1:1").unwrap()]).unwrap()
    }

    /// A lock that was won just now, and ends in a moment unless somebody extends it; nobody looks after it yet.
    fn short_hold(engine: &Engine) -> Arc<HeldLock> {
        let sent = Moment::now();
        let won = Won {
            name: LockName::new(b"x"),
            plan: Arc::new(Plan::mutex(b"", b"x", KeyTtls::default())),
            owner: OwnerToken::draw().unwrap(),
            token: FencingToken::new(1),
            raised: false,
            ttl: Duration::from_secs(10),
            renewed: true,
            sent,
            asked: crate::time::tick(),
            use_until: sent.checked_add(Duration::from_millis(20)).unwrap(),
            reached: NodeSet::default(),
            grants: Default::default(),
            in_lists: false,
        };
        Arc::new(HeldLock::new(Arc::clone(engine.shared()), 0, won))
    }

    #[test]
    fn d12_a_lock_whose_renewal_panicked_is_announced_as_lost_at_its_deadline() {
        let engine = engine();
        let lock = short_hold(&engine);
        let lost = lock.lost();

        survive(engine.shared(), &[Arc::clone(&lock)], || panic!("a bug"));

        // By the renewal thread: nobody else looks at it.
        assert_eq!(lost.recv_timeout(PATIENCE), Ok(Lost::Expired));
        assert_eq!(lock.remaining(), Err(Lost::Expired));
    }

    #[test]
    fn d12_a_lock_that_no_thread_looks_after_is_lost_at_its_deadline() {
        let engine = engine();
        let lock = short_hold(&engine);
        let lost = lock.lost();

        let until = time::tick().checked_add(PATIENCE).unwrap();
        while lock.remaining().is_ok() {
            assert!(time::tick() < until, "it is held for ever");
            std::thread::yield_now();
        }

        assert_eq!(lock.remaining(), Err(Lost::Expired));
        assert_eq!(lost.try_recv(), Ok(Lost::Expired));
        assert_eq!(engine.shared().counters.snapshot(Vec::new()).locks_lost, 1);
    }
}
