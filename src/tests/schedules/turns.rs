//! Calls that wait for their turn to begin a round.

use super::{Section, World, call, join, ms, patiently, spawn, until};
use crate::engine::CancelHandle;
use crate::sys::checked;

/// A ticket that nobody is told of would leave the others asleep, and time would pass.
#[test]
fn h5_calls_of_more_threads_than_tickets_all_get_their_turn() {
    patiently(3_000, || {
        let world = World::new(1);
        let locks = world.manager();
        locks.engine.shared.admission.allow(1);
        let take = |name: &'static str| {
            let lock = locks.mutex(name);
            spawn(name, move || drop(lock.lock().unwrap()))
        };

        join(["a", "b", "c"].map(take));

        assert_eq!(checked::now(), ms(0), "somebody slept for too long");
        assert!(locks.engine.shared.admission.is_idle());
        assert!(world.all_free());
        world.end([locks]);
    });
}

/// A call that is cancelled may have been given its ticket at that moment; and a hand-over needs a second one.
#[test]
fn h5_calls_that_end_in_the_queue_for_tickets_block_no_other_call() {
    patiently(3_000, || {
        let world = World::new(1);
        let locks = world.manager();
        locks.engine.shared.admission.allow(1);
        let section = Section::default();
        let cancel = CancelHandle::new();
        let other = locks.mutex("b");
        let mut threads = vec![
            call(&locks, "a", &section, Some(&cancel)),
            call(&locks, "a", &section, None),
        ];
        threads.push(spawn("another lock", move || {
            drop(other.try_lock().unwrap())
        }));
        threads.push(spawn("canceller", move || cancel.cancel()));

        join(threads);

        assert!(locks.engine.shared.admission.is_idle());
        assert!(world.all_free());
        world.end([locks]);
    });
}

/// The release finds no ticket for the acquire of the next call, and one is free a moment later. An acquire before the
/// release would be refused, and the release tells this manager of nothing: it says that its own acquire follows.
#[test]
fn a_call_without_an_acquire_by_the_release_asks_behind_it() {
    patiently(4_000, || {
        let world = World::new(1);
        let locks = world.manager();
        let guard = locks.mutex("a").lock().unwrap();
        let lock = locks.mutex("a");
        let next = spawn("next", move || drop(lock.lock().unwrap()));
        until(|| locks.stats().waiting == 1);
        let admission = &locks.engine.shared.admission;
        admission.allow(2);
        let ticket = admission.enter();
        let other = spawn("other", move || drop(ticket));

        guard.release().unwrap();

        join([next, other]);
        assert_eq!(
            checked::now(),
            ms(0),
            "it was refused, and heard of no release"
        );
        assert!(world.all_free());
        world.end([locks]);
    });
}
