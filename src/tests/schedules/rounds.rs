//! Votes come in, one decision goes out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{hastily, join, ms, patiently, spawn};
use crate::answer::{Answer, LockStatus};
use crate::engine::round::Pending;
use crate::error::{NodeAnswer, RoundLoss};
use crate::ids::NodeId;
use crate::logic::acquire_round::{AcquireEnd, AcquireRound, Rule};
use crate::session::pending_command::ReplyHandler;
use crate::sys::checked::{self, OwnThread};
use crate::time::{Moment, deadline};

/// A round of three.
fn round() -> Arc<Pending<AcquireRound>> {
    let round = AcquireRound::new(Rule::Exclusive, 7, Moment::now().checked_add(ms(10_000)));
    Arc::new(Pending::new(3, round, None))
}

fn deliver(
    pending: &Arc<Pending<AcquireRound>>,
    node: u8,
    counted: &Arc<AtomicUsize>,
) -> OwnThread {
    let pending = Arc::clone(pending);
    let counted = Arc::clone(counted);
    spawn("deliverer", move || {
        if pending.deliver(NodeId::new(node), Answer::of(LockStatus::Accepted), true) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    })
}

#[test]
fn the_decision_of_a_round_wakes_all_its_waiters() {
    patiently(8_000, || {
        let pending = round();
        let wait = |pending: &Pending<AcquireRound>| {
            assert_eq!(
                pending.wait(deadline(ms(100))),
                AcquireEnd::Won { token: 7 }
            );
            assert_eq!(checked::now(), ms(0), "the wake-up was another's");
        };
        let theirs = Arc::clone(&pending);
        let other = spawn("waiter", move || wait(&theirs));
        let counted = Arc::default();
        let threads: Vec<_> = (0..3).map(|it| deliver(&pending, it, &counted)).collect();

        wait(&pending);

        other.join();
        join(threads);
    });
}

#[test]
fn a_round_wakes_its_thread_without_the_votes_behind_its_decision() {
    patiently(16_000, || {
        let pending = round();
        let counted = Arc::default();
        let threads: Vec<_> = (0..3).map(|it| deliver(&pending, it, &counted)).collect();

        let end = pending.wait(deadline(ms(100)));

        assert_eq!(end, AcquireEnd::Won { token: 7 });
        assert_eq!(checked::now(), ms(0), "the wake-up was lost");
        join(threads);
        assert_eq!(counted.load(Ordering::Relaxed), 2, "the third is late");
        assert!(pending.rows().iter().all(|it| *it == NodeAnswer::Granted));
    });
}

#[test]
fn votes_a_timeout_and_a_close_agree_on_one_end() {
    hastily(16_000, || {
        let pending = round();
        let counted = Arc::default();
        let mut threads: Vec<_> = (0..2).map(|it| deliver(&pending, it, &counted)).collect();
        let closed = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&pending);
        let closing = Arc::clone(&closed);
        threads.push(spawn("closer", move || {
            closing.store(usize::from(theirs.close()), Ordering::Relaxed);
        }));

        let end = pending.wait(deadline(ms(100)));

        join(threads);
        assert!(pending.end().is_some());
        assert_eq!(pending.wait(deadline(ms(100))), end, "it stays that");
        let counted = counted.load(Ordering::Relaxed);
        match end {
            AcquireEnd::Won { .. } => assert_eq!((counted, closed.load(Ordering::Relaxed)), (2, 0)),
            AcquireEnd::Lost(RoundLoss::NoQuorum) => assert!(counted < 2),
            other => panic!("{other:?}"),
        }
    });
}
