//! The work of a read-write lock: readers read twice what writers write anew.

use quorlock::{AcquireError, LockManager};

use crate::client::{Client, Hold};
use crate::guards::{Call, Guard, Taken};
use crate::history::Mode;

const LOCK: &str = "readers/0";

pub(crate) fn take(
    locks: &LockManager,
    rng: &mut fastrand::Rng,
    call: &Call,
) -> Result<Taken, AcquireError> {
    let name = LOCK.to_owned();
    let lock = locks.rw_lock(&name).renew(call.renew);
    if rng.u8(..3) != 0 {
        let guard = call.ask(
            || lock.try_read(),
            |wait| lock.try_read_for(wait),
            || lock.read(),
        )?;
        return Ok(Taken {
            guard: Guard::Read(guard),
            mode: Mode::Shared,
            names: name,
        });
    }
    if rng.u8(..4) == 0 {
        // The same lock by another name.
        let guard = call.lock(locks.mutex(&name))?;
        return Ok(Taken::exclusive(guard, name));
    }
    let guard = call.ask(
        || lock.try_write(),
        |wait| lock.try_write_for(wait),
        || lock.write(),
    )?;
    Ok(Taken {
        guard: Guard::Write(guard),
        mode: Mode::Exclusive,
        names: name,
    })
}

pub(crate) fn work(client: &mut Client, hold: &Hold) {
    match hold.guard {
        Guard::Read(_) => client.compare(hold),
        _ => client.update(hold),
    }
}

#[cfg(test)]
mod tests {
    use crate::judge_tests::Tale;

    const READS: &str = "shared readers/0";
    const WRITES: &str = "exclusive readers/0";

    #[test]
    fn readers_together_behind_a_writer_are_accepted() {
        let tale = Tale::begin();
        let writer = tale.hold_as(WRITES, 1, 10, 0, 5);
        tale.release(&writer, 50);
        // They have its number; one that knows of a writer that got no majority has a larger one.
        let readers = [(2, 10, 51), (3, 12, 52), (4, 10, 53)]
            .map(|(client, number, from)| tale.hold_as(READS, client, number, 20, from));
        for reader in &readers {
            assert_eq!(tale.tell(format!("register {reader}")), "ok 0");
            assert_eq!(tale.tell(format!("read {reader}")), "ok 0");
        }
        tale.hold_as(WRITES, 5, 13, 60, 154);

        assert_eq!(tale.assert_objections(&[]).count("readers-together"), 2);
    }

    #[test]
    fn a_writer_that_writes_after_a_reader_has_registered_is_refused() {
        let tale = Tale::begin();
        let writer = tale.hold_as(WRITES, 1, 10, 0, 5);
        tale.tell(format!("register {writer}"));
        // The writer was stopped for longer than its lock lasts.
        let reader = tale.hold_as(READS, 2, 10, 90, 110);
        assert_eq!(tale.tell(format!("register {reader}")), "ok 0");
        assert_eq!(tale.tell(format!("read {reader}")), "ok 0");

        assert_eq!(tale.tell(format!("write {writer} 0")), "stale");
        assert_eq!(tale.tell(format!("read {reader}")), "ok 0");
        tale.assert_objections(&[]);
    }

    #[test]
    fn two_versions_read_under_a_valid_guard_are_detected() {
        let tale = Tale::to_a_trusting_one();
        let writer = tale.hold_as(WRITES, 1, 10, 0, 5);
        tale.tell(format!("register {writer}"));
        let reader = tale.tell(format!(
            "lease 2 {READS} 10 1000000000 true 1100000000 1100000000"
        ));
        tale.tell(format!("register {reader}"));
        assert_eq!(tale.tell(format!("read {reader}")), "ok 0");
        assert_eq!(tale.tell(format!("write {writer} 0")), "ok 1");
        assert_eq!(tale.tell(format!("read {reader}")), "ok 1");
        // If it was not valid any more it has seen that itself.
        tale.assert_objections(&["stale-write"]);

        tale.still_valid(&reader);

        tale.assert_objections(&["stale-write", "torn"]);
    }
}
