//! Waiting for something to become true, with a limit that no healthy run comes near.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Error;

/// How long anything in this crate waits before it gives up: 55 s. The longest pause between two attempts of a call is a minute,
/// so whoever gets a lock within this time need not have asked again by itself.
pub const PATIENCE: Duration = Duration::from_secs(55);

/// Time between two looks: 2 ms.
const POLL: Duration = Duration::from_millis(2);

/// As much of the time between two looks counts: a machine that stands still for a minute waits for nothing meanwhile.
const STEP: Duration = Duration::from_secs(1);

/// Blocks until `look` says true; looks every 2 ms.
///
/// # Panics
///
/// After [`PATIENCE`], naming `what`.
#[track_caller]
pub fn eventually(what: &str, look: impl FnMut() -> bool) {
    if !holds_within(PATIENCE, look) {
        panic!("waited {PATIENCE:?} in vain: {what}");
    }
}

/// As [`eventually`], until `find` finds something; returns it.
#[track_caller]
pub fn eventually_some<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    eventually(what, || {
        found = find();
        found.is_some()
    });
    found.expect("`eventually` returns when something is found")
}

/// As [`eventually`], for code that returns its errors.
pub(crate) fn wait_for(what: impl Fn() -> String, look: impl FnMut() -> bool) -> Result<(), Error> {
    wait_for_longer(1, what, look)
}

/// The same with so many times the patience.
pub(crate) fn wait_for_longer(
    times: u32,
    what: impl Fn() -> String,
    look: impl FnMut() -> bool,
) -> Result<(), Error> {
    let patience = PATIENCE.saturating_mul(times);
    if holds_within(patience, look) {
        Ok(())
    } else {
        Err(Error::new(format!(
            "waited {patience:?} in vain: {}",
            what()
        )))
    }
}

fn holds_within(patience: Duration, mut look: impl FnMut() -> bool) -> bool {
    let (mut waited, mut last) = (Duration::ZERO, Instant::now());
    loop {
        if look() {
            return true;
        }
        if waited >= patience {
            return false;
        }
        sleep(POLL);
        let now = Instant::now();
        waited = waited.saturating_add(now.duration_since(last).min(STEP));
        last = now;
    }
}
