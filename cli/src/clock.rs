//! The clock that all processes of a machine share. It continues while the machine sleeps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
/// On macOS it goes on during sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The time since the start of the machine, about.
pub(crate) fn now() -> Duration {
    let now = clock_gettime(CLOCK);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}
