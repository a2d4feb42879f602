//! Points in time.
//!
//! Two kinds of them, never mixed:
//!
//! - a [`Moment`] measures *leases*. It is a pair of clocks, one that runs while the machine is
//!   suspended and the wall clock, and of two elapsed times the larger one counts. A machine that
//!   sleeps, a virtual machine that was stopped and then had its wall clock corrected, or a step of
//!   the wall clock can then only shorten a lease, never lengthen it.
//! - a [`Tick`] measures *waits*. It is the standard library's monotonic clock, which a step of the
//!   wall clock does not move: a deadline of five seconds is five seconds of this process' life.

mod shown;

use std::time::Duration;

use crate::ids::wide;
use crate::sys;

pub(crate) use crate::sys::{Tick, tick};
pub(crate) use shown::{About, Exactly};

/// All clocks, read once at the beginning of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) moment: Moment,
    pub(crate) tick: Tick,
}

impl Now {
    pub(crate) fn read() -> Now {
        Now {
            moment: Moment::now(),
            tick: tick(),
        }
    }
}

/// The end of a wait that begins now.
pub(crate) fn deadline(timeout: Duration) -> Tick {
    let now = tick();
    now.checked_add(timeout).unwrap_or(now)
}

/// A point in time for leases: see the module's header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Moment {
    /// Since some fixed point; runs during suspend where the system has such a clock.
    boot: Duration,
    /// Since 1970.
    wall: Duration,
}

impl Moment {
    /// Reads both clocks.
    pub(crate) fn now() -> Moment {
        Moment {
            boot: sys::boot_clock(),
            wall: sys::wall_clock(),
        }
    }

    /// This moment, `by` later on both clocks; `None` if a clock cannot show it.
    pub(crate) fn checked_add(self, by: Duration) -> Option<Moment> {
        Some(Moment {
            boot: self.boot.checked_add(by)?,
            wall: self.wall.checked_add(by)?,
        })
    }

    /// Time since `earlier`: the larger one of the two clocks.
    pub(crate) fn since(self, earlier: Moment) -> Duration {
        self.boot
            .saturating_sub(earlier.boot)
            .max(self.wall.saturating_sub(earlier.wall))
    }

    /// Time until `deadline`: the smaller one of the two clocks, zero once either has passed it.
    pub(crate) fn until(self, deadline: Moment) -> Duration {
        deadline
            .boot
            .saturating_sub(self.boot)
            .min(deadline.wall.saturating_sub(self.wall))
    }

    /// The deadline that ends with the first of the two.
    pub(crate) fn earliest(self, other: Moment) -> Moment {
        Moment {
            boot: self.boot.min(other.boot),
            wall: self.wall.min(other.wall),
        }
    }

    /// Whether `deadline` is now or in the past, on either clock.
    pub(crate) fn has_reached(self, deadline: Moment) -> bool {
        deadline.boot <= self.boot || deadline.wall <= self.wall
    }

    /// Microseconds since 1970, for fencing proposals.
    pub(crate) fn wall_micros(self) -> u64 {
        wide(self.wall.as_micros())
    }

    /// Microseconds on the clock that runs in suspend and is never stepped, for comparing other
    /// clocks with it.
    pub(crate) fn boot_micros(self) -> u64 {
        wide(self.boot.as_micros())
    }

    #[cfg(test)]
    pub(crate) fn at(boot: Duration, wall: Duration) -> Moment {
        Moment { boot, wall }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn c2_a_step_of_the_wall_clock_only_shortens_a_lease() {
        let sent = Moment::at(s(100), s(5_000));
        let deadline = sent.checked_add(s(10)).unwrap();

        let stepped_forward = Moment::at(s(101), s(5_061));
        assert!(stepped_forward.has_reached(deadline));
        assert_eq!(stepped_forward.since(sent), s(61));

        let stepped_back = Moment::at(s(109), s(1_400));
        assert!(!stepped_back.has_reached(deadline));
        assert_eq!(stepped_back.until(deadline), s(1));
        assert!(Moment::at(s(110), s(1_401)).has_reached(deadline));
    }

    #[test]
    fn c1_time_in_suspend_counts() {
        let deadline = Moment::at(s(100), s(5_000)).checked_add(s(10)).unwrap();

        // The wall clock has not been corrected after the resume yet.
        assert!(Moment::at(s(3_700), s(5_001)).has_reached(deadline));
    }

    #[test]
    fn a_deadline_that_no_clock_can_show_is_none() {
        assert_eq!(Moment::now().checked_add(Duration::MAX), None);
    }

    #[test]
    fn both_clocks_run() {
        let before = Moment::now();
        while Moment::now().since(before) < Duration::from_millis(2) {}
        assert!(before.boot < Moment::now().boot);
        assert!(1_600_000_000_000_000 < before.wall_micros());
    }
}
