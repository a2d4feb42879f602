//! Durations for people: a number, a space, and one unit.

use std::fmt;
use std::time::Duration;

const TWO_MINUTES: u64 = 120;
const HOUR: u64 = 3600;

/// A measured duration: `3.0 s`, `119.6 ms`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About(pub(crate) Duration);

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.as_secs(), self.0.as_secs_f64()) {
            _ if self.0.is_zero() => f.write_str("0 s"),
            (HOUR.., seconds) => write!(f, "{:.1} h", seconds / 3600.0),
            // Of a minute and a half the seconds matter.
            (TWO_MINUTES.., seconds) => write!(f, "{:.1} min", seconds / 60.0),
            _ => f.write_str(&spaced(&format!("{:.1?}", self.0))),
        }
    }
}

/// A setting, unrounded: `3.999 s`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exactly(pub(crate) Duration);

impl fmt::Display for Exactly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&spaced(&format!("{:?}", self.0)))
    }
}

/// The `Debug` of a duration, with a space before its unit.
fn spaced(duration: &str) -> String {
    let unit = duration.trim_start_matches(|sign: char| !sign.is_alphabetic());
    duration.replace(unit, &format!(" {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_has_one_decimal() {
        for (nanos, shown) in [
            (0, "0 s"),
            (20_000, "20.0 µs"),
            (1_540_000, "1.5 ms"),
            (119_456_789, "119.5 ms"),
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
    }

    #[test]
    fn a_configured_duration_is_not_rounded() {
        for (nanos, shown) in [
            (0, "0 ns"),
            (1, "1 ns"),
            (999_000, "999 µs"),
            (5_000_000, "5 ms"),
            (100_000_000, "100 ms"),
            (1_000_000_000, "1 s"),
            (3_999_000_000, "3.999 s"),
            (1_500_000_000, "1.5 s"),
            (10_000_000_000, "10 s"),
            (1_000_500_000, "1.0005 s"),
            (3_600_000_000_000, "3600 s"),
        ] {
            assert_eq!(
                Exactly(Duration::from_nanos(nanos)).to_string(),
                shown,
                "{nanos}"
            );
        }
    }
}
