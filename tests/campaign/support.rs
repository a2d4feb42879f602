//! What the campaign's files have in common.

use std::io::{Write, stderr};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Nanoseconds on a clock that all processes share, that nobody steps, and that leases are counted on.
pub(crate) fn boot() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let now = clock_gettime(CLOCK);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// What a clock shows when [`boot`] shows 0, in microseconds since 1970, if it is `ahead` of the system's by these nanoseconds.
pub(crate) fn epoch(ahead: i64) -> u64 {
    let (wall, boot) = (clock_gettime(ClockId::Realtime), boot());
    let micros = (wall.tv_sec * 1_000_000_000 + wall.tv_nsec + ahead) / 1_000;
    u64::try_from(micros).unwrap() - boot / 1_000
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

/// A share of `time`.
pub(crate) fn times(time: Duration, share: f64) -> Duration {
    time.mul_f64(share)
}

/// A random time from `from` to `to` times `unit`.
pub(crate) fn between(rng: &mut fastrand::Rng, unit: Duration, from: f64, to: f64) -> Duration {
    unit.mul_f64(from + rng.f64() * (to - from))
}

/// Sleeps until [`boot`] shows `until`.
pub(crate) fn sleep_until(until: u64) {
    loop {
        let now = boot();
        if until <= now {
            return;
        }
        thread::sleep(Duration::from_nanos(until - now));
    }
}

/// Prints past the test runner, which keeps what a passing test says for itself.
pub(crate) fn announce(line: impl std::fmt::Display) {
    let _ = writeln!(stderr(), "campaign: {line}");
}
