//! The renewal thread: one for all held locks. It waits for no node.
//!
//! It sleeps until the first lease is due, enqueues all due extensions, writes once to each node,
//! and sleeps again. The thread that reads the deciding answer enters the lease in the schedule
//! again.

use std::sync::Arc;

use crate::engine::nodes::fanout::Enqueued;
use crate::engine::schedule::{COMPARE, Due};
use crate::engine::shared::ManagerState;
use crate::sys::logging::error;
use crate::time::{Moment, Now};

/// The thread's work.
pub(crate) fn run(shared: &Arc<ManagerState>) {
    let mut last = Now::read();
    while let Some(due) = shared.schedule.next(&mut last) {
        let due = soonest_first(due);
        survive(shared, &due, || {
            let mut batch = Enqueued::default();
            for lease in &due {
                Arc::clone(lease).on_due(&mut batch);
            }
            shared.fanout.dispatch(batch);
        });
    }
}

/// Does the `work` for the `due` leases and outlives a panic in it.
fn survive(shared: &ManagerState, due: &[Arc<dyn Due>], work: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        // The leases end visibly at their deadlines; all others go on.
        error!(
            shared.fanout.journal,
            "the renewal thread panicked and continues; please report this"
        );
        for it in due {
            let _ = shared.schedule.enter(Arc::clone(it), COMPARE);
        }
    }
}

/// After a delay of this thread many are due, with different ttls: the first to end is written
/// first.
fn soonest_first(mut due: Vec<Arc<dyn Due>>) -> Vec<Arc<dyn Due>> {
    let now = Moment::now();
    due.sort_by_cached_key(|it| it.ends_in(now));
    due
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Config;
    use crate::engine::held::HoldInner;
    use crate::engine::nodes::primary::NodeAddress;
    use crate::engine::{Engine, LockSpec, Won};
    use crate::error::LostReason;
    use crate::ids::NodeId;
    use crate::logic::lease::FIRST_LIFE;
    use crate::time;
    use crate::wire::{KeyTtls, LockCommands};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A manager that never talks to its nodes.
    fn engine() -> Engine {
        engine_of(1)
    }

    fn engine_of(nodes: u16) -> Engine {
        let url = |port| format!("redis://127.0.0.1:{port}");
        let addresses = (1..=nodes).map(|it| NodeAddress::parse(&url(it)).unwrap());
        Engine::start(Config::default(), addresses.collect()).unwrap()
    }

    /// A lock that was won just now, and ends in a moment unless somebody extends it; nobody looks
    /// after it yet.
    fn short_hold(engine: &Engine) -> Arc<HoldInner> {
        hold(engine, Duration::from_millis(20))
    }

    fn hold(engine: &Engine, time_left: Duration) -> Arc<HoldInner> {
        let won = won(engine, time_left);
        Arc::new(HoldInner::new(Arc::clone(&engine.shared), 0, won))
    }

    fn won(engine: &Engine, time_left: Duration) -> Won {
        let commands = LockCommands::mutex(b"", b"x", KeyTtls::default());
        let spec = Arc::new(LockSpec::new(&engine.shared.config, b"x", commands));
        Won::just_now(&spec, time_left)
    }

    #[test]
    fn d12_a_panic_in_a_renewal_announces_the_loss_at_the_deadline() {
        let engine = engine();
        let lock = short_hold(&engine);
        let lost = lock.lost(false);

        survive(&engine.shared, &[Arc::<HoldInner>::clone(&lock)], || {
            panic!("a bug")
        });

        // By the renewal thread: nobody else looks at it.
        assert_eq!(
            lost.recv_timeout(PATIENCE),
            Ok(lock.lost_by(LostReason::Expired))
        );
        assert_eq!(lock.remaining(), Err(lock.lost_by(LostReason::Expired)));
    }

    /// RACE: T1, the renewal thread, plans the next step of a lock; T2 releases the lock; T1 enters
    /// it.
    #[test]
    fn f7_a_schedule_entry_behind_the_end_of_its_lock_is_removed() {
        let engine = engine();
        let lock = short_hold(&engine);
        lock.lose(LostReason::ShutDown);

        let due = Arc::<HoldInner>::clone(&lock);
        assert!(engine.shared.schedule.enter(due, Duration::ZERO));

        let until = time::tick().checked_add(PATIENCE).unwrap();
        while 1 < Arc::strong_count(&lock) || Arc::weak_count(&lock) != 0 {
            assert!(time::tick() < until, "it stays in memory");
            std::thread::yield_now();
        }
    }

    #[test]
    fn h21_of_locks_due_together_the_one_with_the_nearest_end_is_first() {
        let engine = engine();
        let time_left = [9, 3, 6].map(Duration::from_secs);
        let due: Vec<Arc<dyn Due>> = time_left
            .iter()
            .map(|it| -> Arc<dyn Due> { hold(&engine, *it) })
            .collect();

        let now = Moment::now();
        let left: Vec<_> = soonest_first(due)
            .iter()
            .map(|it| it.ends_in(now).as_secs_f64().ceil())
            .collect();

        assert_eq!(left, [3.0, 6.0, 9.0]);
    }

    /// RACE: T1, a call, is refused by a node and waits in its list; T2 releases the lock there,
    /// and the node hands it over to T1; T1 raises its token and finds the key there.
    #[test]
    fn h5_a_key_that_is_handed_over_before_the_raise_counts_for_its_short_life() {
        let engine = engine_of(3);
        let ttl = Duration::from_secs(10);
        for (handed, is_short) in [(vec![], false), (vec![1], false), (vec![1, 2], true)] {
            let mut won = won(&engine, ttl);
            won.win.is_handed_over = !handed.is_empty();
            won.win.handed = handed.iter().copied().map(NodeId::new).collect();
            let lock = HoldInner::new(Arc::clone(&engine.shared), 0, won);

            let left = lock.remaining().unwrap();

            assert_eq!(left <= FIRST_LIFE, is_short, "{handed:?}: {left:?}");
        }
    }

    #[test]
    fn d12_a_lock_without_a_renewal_thread_is_lost_at_its_deadline() {
        let engine = engine();
        let lock = short_hold(&engine);
        let lost = lock.lost(false);

        let until = time::tick().checked_add(PATIENCE).unwrap();
        while lock.remaining().is_ok() {
            assert!(time::tick() < until, "it is held for ever");
            std::thread::yield_now();
        }

        assert_eq!(lock.remaining(), Err(lock.lost_by(LostReason::Expired)));
        assert_eq!(lost.try_recv(), Ok(lock.lost_by(LostReason::Expired)));
        assert_eq!(
            engine.shared.fanout.journal.counters.snapshot().locks_lost,
            1
        );
    }
}
