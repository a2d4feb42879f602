//! The only file that reads a clock.

use std::time::{Duration, Instant, SystemTime};

/// A point in time for waiting and for time-outs.
pub(crate) type Tick = Instant;

/// Reads the clock for waiting.
pub(crate) fn tick() -> Tick {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    Instant::now()
}

/// Since 1970.
pub(crate) fn wall_clock() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    let now = SystemTime::now();
    // A wall clock before 1970 is as good as none: all differences are then zero and the other clock decides.
    now.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
}

/// Since some fixed point; runs during suspend where the system has such a clock.
#[cfg(unix)]
pub(crate) fn boot_clock() -> Duration {
    // macOS' CLOCK_MONOTONIC goes on during sleep, unlike the clock behind `Instant` there.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    let now = rustix::time::clock_gettime(CLOCK);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

/// Since some fixed point.
#[cfg(not(unix))]
pub(crate) fn boot_clock() -> Duration {
    // No safe reading of such a clock here. The standard library's is the best there is; a suspend is then seen by
    // the wall clock alone.
    static START: std::sync::OnceLock<Tick> = std::sync::OnceLock::new();
    tick().saturating_duration_since(*START.get_or_init(tick))
}
