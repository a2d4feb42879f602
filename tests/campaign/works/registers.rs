//! The work of a mutex: a version that is read, and written anew from what was read.

use quorlock::{AcquireError, LockManager};

use crate::client::{Client, Hold};
use crate::grip::{Call, Taken};

pub(crate) const NAME: &str = "registers";

const LOCKS: [&str; 2] = ["registers/0", "registers/1"];

pub(crate) fn take(
    locks: &LockManager,
    rng: &mut fastrand::Rng,
    call: &Call,
) -> Result<Taken, AcquireError> {
    let name = LOCKS[rng.usize(..LOCKS.len())];
    let lock = locks.mutex(name).renew(call.renew);
    let guard = call.ask(
        || lock.try_lock(),
        |wait| lock.try_lock_for(wait),
        || lock.lock(),
    )?;
    Ok(Taken::alone(guard, name))
}

pub(crate) fn work(client: &mut Client, hold: Hold) -> Option<Hold> {
    client.update(&hold);
    Some(hold)
}
