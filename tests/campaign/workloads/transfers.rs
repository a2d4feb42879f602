//! The work of several names at once: what is paid from one account to the other is half done in between, and nobody who
//! holds one of the two, or both, sees that.

use quorlock::{AcquireError, LockManager};

use crate::client::{Client, Hold};
use crate::guards::{Call, Taken};

const ACCOUNTS: [&str; 2] = ["transfers/0", "transfers/1"];

pub(crate) fn take(
    locks: &LockManager,
    rng: &mut fastrand::Rng,
    call: &Call,
) -> Result<Taken, AcquireError> {
    let mut names = ACCOUNTS;
    rng.shuffle(&mut names);
    if rng.bool() {
        let lock = locks.multi_lock(names).renew(call.renew);
        let guard = call.ask(
            || lock.try_lock(),
            |wait| lock.try_lock_for(wait),
            || lock.lock(),
        )?;
        return Ok(Taken::exclusive(guard, names.join(",")));
    }
    Ok(Taken::exclusive(
        call.lock(locks.mutex(names[0]))?,
        names[0],
    ))
}

pub(crate) fn work(client: &mut Client, hold: &Hold) {
    let pays = hold.names.contains(',') && client.rng.u8(..4) != 0;
    if !pays {
        return client.compare(hold);
    }
    if !client.register(hold) || client.read(hold).is_none() {
        return;
    }
    let careful = client.rng.bool();
    for _ in 0..2 {
        if careful && !client.look(hold) || !client.pay(hold) {
            return;
        }
        client.think(hold);
    }
}

#[cfg(test)]
mod tests {
    use crate::judge_tests::Tale;

    const BOTH: &str = "exclusive transfers/0,transfers/1";

    /// A transfer that is half done, by a hold with token 10 that is over; and a later hold of one of its names.
    fn half_a_transfer(tale: Tale) -> (Tale, String, String) {
        let both = tale.hold_as(BOTH, 1, 10, 0, 5);
        tale.tell(format!("register {both}"));
        assert_eq!(tale.tell(format!("pay {both}")), "ok 1");
        let one =
            tale.tell("lease 2 exclusive transfers/1 11 1000000000 true 1100000000 1100000000");
        (tale, both, one)
    }

    #[test]
    fn half_a_transfer_is_undone_by_the_next_registration() {
        let (tale, both, one) = half_a_transfer(Tale::begin());
        tale.tell(format!("register {one}"));
        tale.tell(format!("read {one}"));
        tale.still_valid(&one);

        // The account that nobody else has asked for refuses it as well.
        assert_eq!(tale.tell(format!("pay {both}")), "stale");

        tale.assert_objections(&[]);
    }

    #[test]
    fn half_a_transfer_under_a_valid_guard_is_detected() {
        let (tale, _, one) = half_a_transfer(Tale::to_a_trusting_one());
        tale.tell(format!("register {one}"));
        tale.tell(format!("read {one}"));
        tale.assert_objections(&[]);

        tale.still_valid(&one);

        tale.assert_objections(&["torn"]);
    }

    #[test]
    fn a_set_beside_one_of_its_names_is_detected() {
        let tale = Tale::begin();
        tale.hold_as("exclusive transfers/0", 1, 10, 0, 5);
        tale.hold_as("exclusive transfers/1", 2, 10, 0, 6);
        tale.assert_objections(&[]);

        tale.hold_as(BOTH, 3, 11, 0, 99);

        let report = tale.assert_objections(&["overlap"]);
        assert_eq!(report.objections_to("overlap"), 2, "{report}");
    }
}
