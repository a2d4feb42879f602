//! Durations for people: a number, a space, and one unit.

use std::fmt;
use std::time::Duration;

const MINUTE: u64 = 60;
const TWO_MINUTES: u64 = 2 * MINUTE;
const HOUR: u64 = 60 * MINUTE;
/// No wait is longer: callers mean "for ever".
const CENTURY: u64 = 100 * 365 * 24 * HOUR;

/// A measured duration: `3.0 s`, `120 ms`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About(pub(crate) Duration);

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        match self.0.as_secs() {
            CENTURY.. => f.write_str("more than 100 years"),
            HOUR.. => write!(f, "{:.1} h", seconds / 3600.0),
            // Of a minute and a half the seconds matter.
            TWO_MINUTES.. => write!(f, "{:.1} min", seconds / 60.0),
            1.. => write!(f, "{seconds:.1} s"),
            0 => match (self.0.as_millis(), self.0.as_micros()) {
                (0, 0) => f.write_str("0 ms"),
                (0, micros) => write!(f, "{micros} µs"),
                (1..10, micros) if micros.checked_rem(1000) != Some(0) => {
                    write!(f, "{:.1} ms", seconds * 1000.0)
                }
                (millis, _) => write!(f, "{millis} ms"),
            },
        }
    }
}

/// Units of [`Exactly`] besides seconds, in nanoseconds.
const UNITS: [(u128, &str); 5] = [
    (3_600_000_000_000, "h"),
    (60_000_000_000, "min"),
    (1_000_000, "ms"),
    (1_000, "µs"),
    (1, "ns"),
];

/// A setting, unrounded: `3.999 s`, `1 h`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exactly(pub(crate) Duration);

impl fmt::Display for Exactly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let nanos = self.0.as_nanos();
        if CENTURY <= seconds {
            return f.write_str("more than 100 years");
        }
        let is_whole = |(unit, _): &(u128, &str)| nanos.checked_rem(*unit) == Some(0);
        let (unit, name) = UNITS.into_iter().find(is_whole).unwrap_or((1, "ns"));
        if nanos == 0 || name == "ms" && 1 <= seconds {
            write!(f, "{} s", self.0.div_duration_f64(Duration::from_secs(1)))
        } else {
            write!(f, "{} {name}", nanos.checked_div(unit).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_has_one_decimal_at_most() {
        for (nanos, shown) in [
            (0, "0 ms"),
            (999, "0 ms"),
            (20_000, "20 µs"),
            (1_000_000, "1 ms"),
            (1_540_000, "1.5 ms"),
            (120_456_789, "120 ms"),
            (999_999_999, "999 ms"),
            (1_000_000_000, "1.0 s"),
            (3_000_000_001, "3.0 s"),
            (10_065_228_000, "10.1 s"),
            (60_600_000_000, "60.6 s"),
            (150_000_000_000, "2.5 min"),
            (86_400_000_000_000, "24.0 h"),
        ] {
            assert_eq!(
                About(Duration::from_nanos(nanos)).to_string(),
                shown,
                "{nanos}"
            );
        }
        assert_eq!(About(Duration::MAX).to_string(), "more than 100 years");
    }

    #[test]
    fn what_was_set_is_not_rounded() {
        for (nanos, shown) in [
            (0, "0 s"),
            (1, "1 ns"),
            (999_000, "999 µs"),
            (5_000_000, "5 ms"),
            (100_000_000, "100 ms"),
            (1_000_000_000, "1 s"),
            (3_999_000_000, "3.999 s"),
            (1_500_000_000, "1.5 s"),
            (10_000_000_000, "10 s"),
            (1_000_500_000, "1000500 µs"),
            (60_000_000_000, "1 min"),
            (90_000_000_000, "90 s"),
            (3_600_000_000_000, "1 h"),
            (3_600_000_000_001, "3600000000001 ns"),
        ] {
            assert_eq!(
                Exactly(Duration::from_nanos(nanos)).to_string(),
                shown,
                "{nanos}"
            );
        }
        assert_eq!(Exactly(Duration::MAX).to_string(), "more than 100 years");
    }
}
