//! `canary.lua`: whether the node still has its data.

use super::call::Run;
use super::number::number;

const DAY: f64 = 86_400_000_000.0;
/// No client asks for more: milliseconds.
pub(super) const LONGEST: f64 = 7_200_000.0;

/// The fields of the canary, with the two longest quarantines moved to today and yesterday.
pub(super) struct Canary {
    found: Vec<u8>,
    format: Vec<u8>,
    /// None if there is no canary.
    pub(super) since: Option<f64>,
    pub(super) is_statement: bool,
    pub(super) run: Vec<u8>,
    pub(super) day: f64,
    pub(super) longest: f64,
    pub(super) before: f64,
    pub(super) origin: Vec<u8>,
    rest: Vec<u8>,
}

/// The fields of a canary, as text, and what is behind them.
struct Fields<'a> {
    format: &'a [u8],
    since: &'a [u8],
    run: &'a [u8],
    day: &'a [u8],
    longest: &'a [u8],
    before: &'a [u8],
    origin: &'a [u8],
    rest: &'a [u8],
}

impl Fields<'_> {
    fn of(found: &[u8]) -> Option<Fields<'_>> {
        let is_run = |it: u8| it.is_ascii_alphanumeric() || it == b'?';
        let digit = |it: u8| it.is_ascii_digit();
        let (format, found) = field(found, digit)?;
        let (since, found) = field(found, digit)?;
        let (run, found) = field(found, is_run)?;
        let (day, found) = field(found, digit)?;
        let (longest, found) = field(found, digit)?;
        let (before, found) = field(found, digit)?;
        let end = found.iter().position(|it| !it.is_ascii_lowercase()).unwrap_or(found.len());
        let (origin, rest) = found.split_at_checked(end).filter(|it| !it.0.is_empty())?;
        Some(Fields { format, since, run, day, longest, before, origin, rest })
    }
}

/// A field of such characters, and what is behind the blank that ends it.
fn field(text: &[u8], is: impl Fn(u8) -> bool) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|it| !is(*it)).filter(|it| *it != 0)?;
    let (field, rest) = text.split_at_checked(end)?;
    Some((field, rest.strip_prefix(b" ")?))
}

/// A whole number in few enough digits to be exact.
fn digits(text: &[u8]) -> Option<f64> {
    number(text).filter(|_| text.len() <= 16)
}

/// What the text says of slots: "0-5460,7000-7000".
fn ranges(text: &[u8]) -> impl Iterator<Item = (f64, f64)> {
    text.split(|it| *it == b',').filter_map(|it| {
        let dash = it.iter().position(|it| *it == b'-')?;
        let (low, high) = it.split_at_checked(dash)?;
        Some((number(low)?, number(high.strip_prefix(b"-")?)?))
    })
}

pub(super) fn read_canary(run: &Run<'_>, key: &[u8]) -> Canary {
    let found = run.keys.text(key).unwrap_or_default();
    let today = (run.now / DAY).floor();
    let mut canary = Canary {
        format: b"1".to_vec(),
        since: None,
        is_statement: found == b"0",
        run: Vec::new(),
        day: today,
        longest: 0.0,
        before: 0.0,
        origin: b"new".to_vec(),
        rest: Vec::new(),
        found,
    };
    if canary.is_statement {
        canary.since = Some(0.0);
        return canary;
    }
    let found = canary.found.clone();
    let Some(fields) = Fields::of(&found) else { return canary };
    let numbers = [fields.since, fields.day, fields.longest, fields.before].map(digits);
    let [Some(since), Some(day), Some(longest), Some(before)] = numbers else { return canary };
    canary.since = Some(since);
    [canary.run, canary.format, canary.origin, canary.rest] =
        [fields.run, fields.format, fields.origin, fields.rest].map(<[u8]>::to_vec);
    let (longest, before) = (longest.min(LONGEST), before.min(LONGEST));
    if day == today - 1.0 {
        canary.before = longest;
    } else if today <= day {
        (canary.longest, canary.before) = (longest, before);
    }
    canary
}

impl Canary {
    /// From now on this process keeps all data.
    pub(super) fn begin_anew(&mut self, run: &Run<'_>) {
        self.origin = if self.since.is_some() { b"old".to_vec() } else { b"new".to_vec() };
        (self.since, self.run) = (Some(run.now), run.run_id.as_bytes().to_vec());
        (self.format, self.rest) = (b"1".to_vec(), Vec::new());
    }

    /// Since when the master of a cluster has served all these slots, if it did with this epoch.
    pub(super) fn owned_since(&self, epoch: &[u8], slots: &[u8]) -> Option<f64> {
        let is_digit = |it: u8| it.is_ascii_digit();
        let (since, rest) = field(self.rest.strip_prefix(b" ")?, is_digit)?;
        let (noted, had) = field(rest, is_digit)?;
        let is_range = |it: &u8| it.is_ascii_digit() || matches!(it, b',' | b'-');
        if noted != epoch || had.is_empty() || !had.iter().all(is_range) {
            return None;
        }
        let had: Vec<_> = ranges(had).collect();
        let is_within = |(low, high): (f64, f64)| had.iter().any(|(first, last)| *first <= low && high <= *last);
        digits(since).filter(|_| ranges(slots).all(is_within))
    }

    /// Notes that.
    pub(super) fn note_owned(&mut self, since: f64, epoch: &[u8], slots: &[u8]) {
        self.rest = [format!(" {since:.0} ").as_bytes(), epoch, b" ", slots].concat();
    }

    /// Writes it if it has changed.
    pub(super) fn write(&self, run: &mut Run<'_>, key: &[u8]) {
        let since = self.since.unwrap_or(0.0);
        let numbers = format!(" {:.0} {:.0} {:.0} ", self.day, self.longest, self.before);
        let since = format!(" {since:.0} ");
        let parts = [&self.format[..], since.as_bytes(), &self.run, numbers.as_bytes(), &self.origin, &self.rest];
        let value = parts.concat();
        if value != self.found {
            run.keys.set(key, &value, None);
        }
    }

    /// For how long this process has kept all data: milliseconds.
    pub(super) fn kept_for(&self, run: &Run<'_>) -> f64 {
        ((run.now - self.since.unwrap_or(0.0)) / 1000.0).floor()
    }
}

/// How many milliseconds of the quarantine are left; and when it ends, or ended, in microseconds since 1970.
pub(super) fn quarantine_left(run: &mut Run<'_>, key: &[u8], length: f64) -> (f64, f64) {
    let found = run.keys.text(key).unwrap_or_default();
    let fields = Fields::of(&found).filter(|it| it.since.len() <= 16 && it.longest.len() <= 7 && it.before.len() <= 7);
    if let Some([Some(since), Some(longest), Some(before)]) =
        fields.map(|it| [it.since, it.longest, it.before].map(number))
    {
        let quarantine_until = since + length.max(longest).max(before) * 1000.0;
        if quarantine_until <= run.now {
            return (0.0, quarantine_until);
        }
    }
    let mut canary = read_canary(run, key);
    if canary.since.is_none_or(|since| run.now < since) {
        canary.longest = canary.longest.max(length);
        canary.begin_anew(run);
        canary.write(run, key);
    }
    let length = length.max(canary.longest).max(canary.before);
    let left = (length - canary.kept_for(run)).max(0.0);
    (left, canary.since.unwrap_or(0.0) + length * 1000.0)
}
