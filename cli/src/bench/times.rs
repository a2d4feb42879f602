//! A histogram of times.

use std::collections::BTreeMap;
use std::time::Duration;

/// Bits of precision for each power of two: times are at most 3 % too long.
const PARTS: u32 = 5;

#[derive(Debug, Default)]
pub(crate) struct Times {
    counts: BTreeMap<u64, u64>,
    count: u64,
    longest: Duration,
}

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        *self.counts.entry(end(nanos)).or_default() += 1;
        self.count += 1;
        self.longest = self.longest.max(time);
    }

    pub(crate) fn add_all(&mut self, others: &Times) {
        for (end, count) in &others.counts {
            *self.counts.entry(*end).or_default() += count;
        }
        self.count += others.count;
        self.longest = self.longest.max(others.longest);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// None if there are no times.
    pub(crate) fn longest(&self) -> Option<Duration> {
        (0 < self.count).then_some(self.longest)
    }

    /// The time that this percentage did not exceed.
    pub(crate) fn percentile(&self, hundredths: u64) -> Option<Duration> {
        let wanted = self.count.saturating_mul(hundredths).div_ceil(100).max(1);
        let mut passed = 0;
        let found = self.counts.iter().find(|(_, count)| {
            passed += **count;
            wanted <= passed
        });
        found.map(|(end, _)| Duration::from_nanos(*end).min(self.longest))
    }

    /// Counts for ranges that double, from the first to the last time.
    pub(crate) fn rows(&self) -> Vec<(Duration, u64)> {
        let mut rows: Vec<(u64, u64)> = Vec::new();
        for (end, count) in &self.counts {
            let power = end.checked_next_power_of_two().unwrap_or(u64::MAX);
            while let Some((last, _)) = rows.last()
                && *last < power
            {
                rows.push((last.checked_mul(2).unwrap_or(u64::MAX), 0));
            }
            match rows.last_mut() {
                Some((_, sum)) => *sum += count,
                None => rows.push((power, *count)),
            }
        }
        rows.into_iter()
            .map(|(end, count)| (Duration::from_nanos(end), count))
            .collect()
    }
}

/// The end of the range of a time.
fn end(nanos: u64) -> u64 {
    let part = nanos.checked_ilog2().unwrap_or(0).saturating_sub(PARTS);
    nanos | ((1 << part) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(times: impl IntoIterator<Item = u64>) -> Times {
        let mut all = Times::default();
        times
            .into_iter()
            .for_each(|it| all.add(Duration::from_micros(it)));
        all
    }

    #[test]
    fn percentiles_are_never_too_short_and_at_most_three_percent_too_long() {
        let times = micros(1..=1_000);
        for (hundredths, exact) in [(1, 10), (50, 500), (90, 900), (99, 990), (100, 1_000)] {
            let said = times.percentile(hundredths).unwrap();
            let exact = Duration::from_micros(exact);
            assert!(
                exact <= said && said <= exact.mul_f64(1.032),
                "{hundredths}: {said:?}"
            );
        }
        assert_eq!(times.longest(), Some(Duration::from_micros(1_000)));
        assert!(times.counts.len() < 300, "{}", times.counts.len());
        let one = micros([7]);
        assert_eq!(
            [1, 50, 100].map(|it| one.percentile(it)),
            [Some(Duration::from_micros(7)); 3]
        );
        assert_eq!(
            (Times::default().percentile(50), Times::default().longest()),
            (None, None)
        );
    }

    #[test]
    fn times_of_any_length_are_counted() {
        let mut all = Times::default();
        [Duration::ZERO, Duration::from_nanos(1), Duration::MAX]
            .into_iter()
            .for_each(|it| all.add(it));
        all.add_all(&micros([3, 3]));
        assert_eq!((all.count(), all.longest()), (5, Some(Duration::MAX)));
        assert_eq!(all.rows().iter().map(|it| it.1).sum::<u64>(), 5);
        assert_eq!(
            all.rows().last().map(|it| it.0),
            Some(Duration::from_nanos(u64::MAX))
        );
    }

    #[test]
    fn rows_double_and_the_empty_ones_between_are_there() {
        let mut times = Times::default();
        [100, 120, 128, 129, 1_000]
            .into_iter()
            .for_each(|it| times.add(Duration::from_nanos(it)));
        let rows: Vec<_> = times
            .rows()
            .iter()
            .map(|(end, count)| (end.as_nanos(), *count))
            .collect();
        assert_eq!(rows, [(128, 2), (256, 2), (512, 0), (1_024, 1)]);
    }
}
