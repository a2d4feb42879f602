//! `counter.lua`: fencing counters.

use super::call::Run;
use super::keyspace::WrongType;
use super::number::number;

/// Why a counter is none.
pub(super) const NO_TEXT: f64 = -1.0;
pub(super) const NO_NUMBER: f64 = -2.0;

const END: f64 = 9_007_199_254_740_992.0;

/// The whole number below 2^53 that was `found`.
pub(super) fn whole(found: Option<&[u8]>) -> Option<f64> {
    let found = found.filter(|it| it.len() <= 16 && it.iter().all(u8::is_ascii_digit))?;
    number(found).filter(|it| *it < END)
}

/// The number of the counter that was `found` under `key`, 0 if there is none; or why it is no number.
pub(super) fn read_counter(run: &Run<'_>, key: &[u8], found: Option<&[u8]>) -> Result<f64, f64> {
    match (whole(found), found) {
        (Some(number), _) => Ok(number),
        (None, Some(_)) => Err(NO_NUMBER),
        (None, None) if run.keys.exists(key) => Err(NO_TEXT),
        (None, None) => Ok(0.0),
    }
}

/// Sets a counter; returns what was there. `life`: milliseconds, 0 for no end.
pub(super) fn set_counter(
    run: &mut Run<'_>,
    key: &[u8],
    value: &[u8],
    life: &[u8],
) -> Result<Option<Vec<u8>>, WrongType> {
    run.keys.exchange(key, value, number(life).filter(|it| 0.0 < *it))
}

/// Sets a counter to a number that is no text yet.
pub(super) fn set_counter_to(run: &mut Run<'_>, key: &[u8], value: f64, life: &[u8]) -> Result<(), WrongType> {
    set_counter(run, key, format!("{value:.0}").as_bytes(), life).map(drop)
}

/// Gives a counter its full life again.
pub(super) fn keep_counter(run: &mut Run<'_>, key: &[u8], life: &[u8]) {
    if let Some(life) = number(life).filter(|it| 0.0 < *it) {
        run.keys.expire(key, life);
    }
}

/// Sets a counter that is there and below `token` to that.
pub(super) fn raise_counter(run: &mut Run<'_>, key: &[u8], found: Option<&[u8]>, token: &[u8], life: &[u8]) {
    let seen = whole(found).zip(number(token));
    if seen.is_some_and(|(seen, token)| seen < token) {
        let _ = set_counter(run, key, token, life);
    }
}
