//! The renewal thread: one for all held locks. It waits for no node.
//!
//! It sleeps until the first lease is due, enqueues all due extensions, writes once to each node, and sleeps again. The
//! thread that reads the deciding answer enters the lease in the schedule again.

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
            let now = Now::read();
            let mut batch = Enqueued::default();
            for lease in &due {
                if let Some(again_in) = Arc::clone(lease).on_due(now, &mut batch) {
                    shared.schedule.enter(Arc::clone(lease), again_in);
                }
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
            shared.schedule.enter(Arc::clone(it), COMPARE);
        }
    }
}

/// After a delay of this thread many are due, with different ttls: the first to end is written first.
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
    use crate::engine::live_hold::held::HoldInner;
    use crate::engine::nodes::primary::NodeAddress;
    use crate::engine::{Engine, LockSpec, Won};
    use crate::error::LostReason;
    use crate::ids::{NodeId, NodeSet};
    use crate::logic::lease;
    use crate::time;
    use crate::wire::{KeyTtls, LockCommands};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A manager that never talks to its node.
    fn engine() -> Engine {
        Engine::start(
            Config::default(),
            vec![NodeAddress::parse("redis://127.0.0.1:1").unwrap()],
        )
        .unwrap()
    }

    /// A lock that was won just now, and ends in a moment unless somebody extends it; nobody looks after it yet.
    fn short_hold(engine: &Engine) -> Arc<HoldInner> {
        hold(engine, Duration::from_millis(20))
    }

    fn hold(engine: &Engine, time_left: Duration) -> Arc<HoldInner> {
        let commands = LockCommands::mutex(b"", b"x", KeyTtls::default());
        let spec = Arc::new(LockSpec::new(&engine.shared.config, b"x", commands));
        let won = Won::just_now(&spec, time_left);
        Arc::new(HoldInner::new(Arc::clone(&engine.shared), 0, won))
    }

    #[test]
    fn d12_a_lock_whose_renewal_panicked_is_announced_as_lost_at_its_deadline() {
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

    /// RACE: T1, the renewal thread, plans the next step of a lock; T2 releases the lock; T1 enters it.
    #[test]
    fn f7_a_lock_that_is_entered_behind_its_end_leaves_nothing_in_the_schedule() {
        let engine = engine();
        let lock = short_hold(&engine);
        lock.lose(LostReason::ShutDown);

        let due = Arc::<HoldInner>::clone(&lock);
        engine.shared.schedule.enter(due, Duration::ZERO);

        let until = time::tick().checked_add(PATIENCE).unwrap();
        while 1 < Arc::strong_count(&lock) || Arc::weak_count(&lock) != 0 {
            assert!(time::tick() < until, "it stays in memory");
            std::thread::yield_now();
        }
    }

    #[test]
    fn h21_while_a_majority_owes_the_answer_to_a_renewal_nobody_is_asked_again() {
        let engine = engine();
        let ttl = engine.shared.config.ttl;
        let lock = hold(&engine, ttl);
        let mut batch = Enqueued::default();
        let due = |it: &HoldInner| {
            it.state
                .lock()
                .renewed_at
                .checked_add(lease::renew_after(ttl))
                .unwrap()
        };
        let now = Now {
            moment: due(&lock),
            tick: time::tick(),
        };
        lock.state.lock().owed.insert(NodeId::new(0));

        let again_in = Arc::clone(&lock).on_due(now, &mut batch);

        let pause = lease::retry_after(engine.shared.fanout.response_timeout);
        assert_eq!(
            (batch.asked, lock.state.lock().renewal.is_some(), again_in),
            (NodeSet::default(), false, Some(pause))
        );

        lock.state.lock().owed = NodeSet::default();
        Arc::clone(&lock).on_due(now, &mut batch);
        assert!(batch.asked != NodeSet::default() || lock.state.lock().renewal.is_some());
        drop(batch);
        lock.lose(LostReason::ShutDown);
    }

    #[test]
    fn a_hold_of_an_hour_is_said_once_and_none_that_is_shorter_or_not_renewed() {
        let engine = engine();
        for renewed in [true, false] {
            let commands = LockCommands::mutex(b"", b"x", KeyTtls::default());
            let spec = LockSpec {
                renew: renewed,
                ..LockSpec::new(&engine.shared.config, b"x", commands)
            };
            let won = Won::just_now(&Arc::new(spec), 2 * lease::LONG_HOLD);
            let lock = Arc::new(HoldInner::new(Arc::clone(&engine.shared), 0, won));
            let logged_after = |age| {
                let now = Now {
                    moment: lock.began.checked_add(age).unwrap(),
                    tick: time::tick(),
                };
                let mut batch = Enqueued::default();
                Arc::clone(&lock).on_due(now, &mut batch);
                drop(batch);
                lock.state.lock().logged_long
            };
            let hour = lease::LONG_HOLD;
            let logged =
                [Duration::ZERO, hour - Duration::from_millis(1), hour, hour].map(logged_after);
            assert_eq!(logged, [false, false, renewed, renewed]);
            lock.lose(LostReason::ShutDown);
        }
    }

    #[test]
    fn h21_of_locks_that_are_due_together_the_one_that_ends_soonest_is_extended_first() {
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

    #[test]
    fn d12_a_lock_that_no_thread_looks_after_is_lost_at_its_deadline() {
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

    /// Also where nobody renews it: its keys have the life of a lock that was handed over.
    #[test]
    fn a_lock_that_was_handed_over_is_extended_after_fifty_milliseconds() {
        let engine = engine();
        for renew in [true, false] {
            let commands = LockCommands::mutex(b"", b"x", KeyTtls::default());
            let spec = LockSpec {
                renew,
                ..LockSpec::new(&engine.shared.config, b"x", commands)
            };
            let won = Won {
                is_handed_over: true,
                ..Won::just_now(&Arc::new(spec), lease::FIRST_LIFE)
            };
            let lock = Arc::new(HoldInner::new(Arc::clone(&engine.shared), 0, won));
            let due = lock.state.lock().first_extension.unwrap();
            let early = lock.began.checked_add(lease::FIRST_EXTENSION / 2).unwrap();
            let mut batch = Enqueued::default();
            let mut at = |moment| {
                let now = Now {
                    moment,
                    tick: time::tick(),
                };
                Arc::clone(&lock).on_due(now, &mut batch)
            };

            assert_eq!(at(early), Some(early.until(due)), "renewed: {renew}");
            assert!(lock.state.lock().renewal.is_none());
            at(due);

            let is_asked = batch.asked != NodeSet::default();
            assert!(is_asked || lock.state.lock().renewal.is_some(), "{renew}");
            let longest = lock.state.lock().longest_ttl;
            assert_eq!(longest, engine.shared.config.ttl, "its full life");
            drop(batch);
            lock.lose(LostReason::ShutDown);
        }
    }

    #[test]
    fn a_lock_that_no_serving_server_lacks_is_not_extended_early() {
        let engine = engine();
        let lock = hold(&engine, engine.shared.config.ttl);
        let mut batch = Enqueued::default();
        let moment = lock.state.lock().first_extension.unwrap();
        let now = Now {
            moment,
            tick: time::tick(),
        };

        let again_in = Arc::clone(&lock).on_due(now, &mut batch);

        // Its server does not serve.
        assert_eq!(batch.asked, NodeSet::default());
        let state = lock.state.lock();
        assert!(state.renewal.is_none() && state.first_extension.is_none());
        drop(state);
        assert!(lease::FIRST_EXTENSION < again_in.unwrap());
        lock.lose(LostReason::ShutDown);
    }

    #[test]
    fn a_lock_is_extended_with_others_if_it_is_nearly_due_and_not_if_it_is_not() {
        let engine = engine();
        let ttl = engine.shared.config.ttl;
        let early = lease::renew_with_others_after(ttl);
        let due = lease::renew_after(ttl);
        let a_moment = ttl / 100;
        for (age, is_extended) in [
            (early / 2, false),
            (early - a_moment, false),
            (due - a_moment, true),
            (due, true),
        ] {
            let lock = hold(&engine, ttl);
            let mut batch = Enqueued::default();
            let moment = lock.state.lock().renewed_at.checked_add(age).unwrap();

            let again_in = Arc::clone(&lock).on_due(
                Now {
                    moment,
                    tick: time::tick(),
                },
                &mut batch,
            );

            // If its node takes the command, its worker may have found by now that it cannot connect.
            let renews = batch.asked != NodeSet::default() || lock.state.lock().renewal.is_some();
            assert_eq!(renews, is_extended, "at the age of {age:?}");
            assert!(
                is_extended || again_in == Some(due - age),
                "again in {again_in:?}"
            );
            drop(batch);
            lock.lose(LostReason::ShutDown);
        }
    }
}
