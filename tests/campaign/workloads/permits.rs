//! The work of a semaphore: each permit has a register of its own, and no more are in than there are permits.

use quorlock::{AcquireError, LockManager};

use crate::guards::{Call, Guard, Taken};
use crate::history::Mode;

const NAME: &str = "permits";

/// Fewer than clients.
const PERMITS: usize = 2;

pub(crate) fn take(locks: &LockManager, call: &Call) -> Result<Taken, AcquireError> {
    let lock = locks.semaphore(NAME, PERMITS).renew(call.renew);
    let permit = call.ask(
        || lock.try_acquire(),
        |wait| lock.try_acquire_for(wait),
        || lock.acquire(),
    )?;
    let names = format!("{NAME}/{}", permit.slot());
    Ok(Taken {
        guard: Guard::Permit(permit),
        mode: Mode::OneOf(PERMITS),
        names,
    })
}

#[cfg(test)]
mod tests {
    use crate::history::Effect;
    use crate::judge_tests::Tale;

    #[test]
    fn one_holder_more_than_permits_is_detected() {
        let tale = Tale::begin();
        tale.hold_as("one-of-2 permits/0", 1, 10, 0, 5);
        tale.hold_as("one-of-2 permits/1", 2, 10, 0, 6);
        assert_eq!(tale.assert_objections(&[]).count("permits-together"), 1);

        // Of a slot that there should not be.
        tale.hold_as("one-of-2 permits/2", 3, 10, 60, 70);
        tale.assert_objections(&["crowd"]);
        tale.fault(Effect::Hastens, 50);
        assert_eq!(tale.assert_objections(&[]).excused("crowd"), 1);
    }
}
