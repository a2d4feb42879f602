//! What is done to a node that is a master with its replicas, and undone again.

use std::thread;
use std::time::Duration;

use devnodes::{Error, Group};

use crate::support::{between, boot};

/// See [`NodeFault::FailOver`](crate::faults::NodeFault::FailOver). The old master becomes a replica.
pub(crate) fn fail_over(
    group: &Group,
    ttl: Duration,
    rng: &mut fastrand::Rng,
    told: impl Fn(u64, u64),
) -> Result<(), Error> {
    let old = group.master().ok_or_else(|| Error::new("no master"))?;
    let from = boot();
    group.servers[old].kill()?;
    let new = promote(group, old)?;
    told(from, boot());
    thread::sleep(between(rng, ttl, 0.0, 1.0));
    group.servers[old].restart()?;
    group.demote(old, new)
}

/// The same without a loss, and with the old master there.
pub(crate) fn hand_over(group: &Group) -> Result<(), Error> {
    let old = group.master().ok_or_else(|| Error::new("no master"))?;
    let new = promote(group, old)?;
    group.demote(old, new)
}

fn promote(group: &Group, old: usize) -> Result<usize, Error> {
    if !group.sentinels.is_empty() {
        return group.fail_over(old);
    }
    let new = (0..group.servers.len())
        .find(|it| *it != old)
        .unwrap_or(old);
    group.promote(new)?;
    Ok(new)
}
