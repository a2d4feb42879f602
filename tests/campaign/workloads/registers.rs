//! The work of a mutex: a version that is read, and written anew from what was read.

use quorlock::{AcquireError, LockManager};

use crate::guards::{Call, Taken};

const LOCKS: [&str; 2] = ["registers/0", "registers/1"];

pub(crate) fn take(
    locks: &LockManager,
    rng: &mut fastrand::Rng,
    call: &Call,
) -> Result<Taken, AcquireError> {
    let name = LOCKS[rng.usize(..LOCKS.len())];
    Ok(Taken::exclusive(call.lock(locks.mutex(name))?, name))
}
