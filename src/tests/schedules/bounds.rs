//! How long calls last at most, on a clock that shows nothing else.

use std::time::Duration;

use super::{World, ms, patiently, sleep_until};
use crate::error::AcquireError;
use crate::sys::checked;

const CONNECT_TIMEOUT: Duration = ms(250);
const RESPONSE_TIMEOUT: Duration = ms(100);
/// An error waits for the reasons of nodes that did not decide it.
const REASONS: Duration = ms(20);

/// How long this takes.
fn lasts<T>(what: impl FnOnce() -> T) -> (Duration, T) {
    let before = checked::now();
    let result = what();
    (checked::now() - before, result)
}

#[test]
fn e6_a_drop_lasts_one_response_timeout_beside_any_number_of_rounds() {
    patiently(300, || {
        let world = World::new(3);
        let locks = world.manager();
        let admission = &locks.engine.shared.admission;
        let guard = locks.mutex("a").lock().unwrap();
        let others: Vec<_> = (0..1_000).map(|_| admission.enter()).collect();
        world
            .servers
            .iter()
            .for_each(|it| it.read_nothing_until(ms(5_000)));

        let (lasted, ()) = lasts(|| drop(guard));

        assert!(lasted <= RESPONSE_TIMEOUT, "{lasted:?}");
        drop(others);
        sleep_until(ms(6_000));
        assert!(world.all_free());
        world.end([locks]);
    });
}

#[test]
fn h5_a_try_lasts_a_connect_timeout_and_two_response_timeouts_at_most() {
    patiently(300, || {
        let world = World::new(3);
        let locks = world.manager();
        drop(locks.mutex("a").lock().unwrap());
        let admission = &locks.engine.shared.admission;
        let at_most = CONNECT_TIMEOUT + RESPONSE_TIMEOUT * 2;

        // Others have all tickets.
        admission.allow(1);
        let other = admission.enter();
        let (lasted, result) = lasts(|| locks.mutex("a").try_lock());
        assert!(
            matches!(result, Err(AcquireError::Busy { .. })) && lasted <= at_most,
            "{lasted:?}: {result:?}"
        );
        drop(other);

        // No node answers.
        world
            .servers
            .iter()
            .for_each(|it| it.read_nothing_until(checked::now() + ms(5_000)));
        for _ in 0..2 {
            let (lasted, result) = lasts(|| locks.mutex("a").try_lock());
            assert!(
                matches!(result, Err(AcquireError::NoQuorum { .. })) && lasted <= at_most,
                "{lasted:?}: {result:?}"
            );
        }
        sleep_until(checked::now() + ms(6_000));
        assert!(world.all_free());
        world.end([locks]);
    });
}

#[test]
fn h8_a_call_in_an_old_outage_lasts_one_pause_within_its_limit() {
    patiently(100, || {
        let world = World::new(3);
        let locks = world.manager_with(|it| it.outage_timeout(ms(0)));
        drop(locks.mutex("a").lock().unwrap());
        world
            .servers
            .iter()
            .for_each(|it| it.read_nothing_until(checked::now() + ms(5_000)));
        assert!(locks.mutex("a").try_lock().is_err());

        // A majority is known not to answer, so that the attempt itself takes no time.
        let lasts_for = |lasted, pause| (pause..=pause + REASONS).contains(&lasted);
        let (lasted, result) = lasts(|| locks.mutex("a").try_lock_for(ms(60_000)));
        assert!(
            matches!(result, Err(AcquireError::NoQuorum { .. })) && lasts_for(lasted, ms(100)),
            "{lasted:?}: {result:?}"
        );
        let (lasted, result) = lasts(|| locks.mutex("a").try_lock_for(ms(40)));
        assert!(
            matches!(result, Err(AcquireError::NoQuorum { .. })) && lasts_for(lasted, ms(40)),
            "{lasted:?}: {result:?}"
        );

        sleep_until(checked::now() + ms(6_000));
        assert!(world.all_free());
        world.end([locks]);
    });
}
