//! Numbers, as scripts have them: doubles. They are exact for whole numbers below 2^53, and overflow into infinity.
#![expect(clippy::as_conversions, reason = "there is no other way between doubles and whole numbers")]

use std::time::Duration;

/// The number that the text is, if it consists of digits and perhaps a point.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    let is_number = text.first()?.is_ascii_digit() && text.iter().all(|it| it.is_ascii_digit() || *it == b'.');
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// What is behind the point is cut off.
pub(super) fn int(number: f64) -> i64 {
    number as i64
}

pub(super) fn of_len(len: usize) -> f64 {
    len as f64
}

pub(super) fn micros(time: Duration) -> f64 {
    time.as_micros() as f64
}
