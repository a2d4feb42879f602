//! A histogram of times.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Digits of precision: times are at most 1 % too long.
const DIGITS: u8 = 2;

#[derive(Debug)]
pub(crate) struct Times {
    nanos: Histogram<u64>,
    longest: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            nanos: Histogram::new(DIGITS).expect("a valid number of digits"),
            longest: Duration::ZERO,
        }
    }
}

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        // Fails where 64 bits of a time need more memory than there are addresses.
        let _ = self
            .nanos
            .record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.longest = self.longest.max(time);
    }

    pub(crate) fn add_all(&mut self, others: &Times) {
        // Fails where `add` fails.
        let _ = self.nanos.add(&others.nanos);
        self.longest = self.longest.max(others.longest);
    }

    pub(crate) fn count(&self) -> u64 {
        self.nanos.len()
    }

    /// The time that this percentage did not exceed, exact for 100. None if there are no times.
    pub(crate) fn percentile(&self, percentage: f64) -> Option<Duration> {
        let found = Duration::from_nanos(self.nanos.value_at_percentile(percentage));
        (!self.nanos.is_empty()).then(|| found.min(self.longest))
    }

    /// Counts for ranges that double, from the first to the last time.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (Duration, u64)> {
        let rows = self.nanos.iter_log(1, 2.0).map(|row| {
            let end = row.value_iterated_to() + 1;
            (Duration::from_nanos(end), row.count_since_last_iteration())
        });
        rows.skip_while(|(_, count)| *count == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A histogram's largest value lacks one.
    const GRAIN: Duration = Duration::from_nanos(1);

    fn micros(times: impl IntoIterator<Item = u64>) -> Times {
        let mut all = Times::default();
        times
            .into_iter()
            .for_each(|it| all.add(Duration::from_micros(it)));
        all
    }

    #[test]
    fn percentiles_are_never_too_short_and_at_most_one_percent_too_long() {
        let times = micros(1..=1_000);
        for (percentage, exact) in [(1, 10), (50, 500), (90, 900), (99, 990), (100, 1_000)] {
            let reported = times.percentile(percentage.into()).unwrap();
            let exact = Duration::from_micros(exact);
            assert!(
                exact <= reported && reported <= exact.mul_f64(1.01),
                "{percentage}: {reported:?}"
            );
        }
        assert_eq!(times.percentile(100.0), Some(Duration::from_micros(1_000)));
        let one = micros([7]);
        assert_eq!(
            [1.0, 50.0, 100.0].map(|it| one.percentile(it)),
            [Some(Duration::from_micros(7)); 3]
        );
        assert_eq!(Times::default().percentile(50.0), None);
    }

    /// Each of a thousand threads has one.
    #[test]
    fn seconds_need_little_memory() {
        let counts = micros([1, 10_000_000]).nanos.distinct_values();
        assert!(counts < 4_000, "{counts}");
    }

    #[test]
    fn times_of_any_length_are_counted() {
        let mut all = Times::default();
        [Duration::ZERO, Duration::from_nanos(1), Duration::MAX]
            .into_iter()
            .for_each(|it| all.add(it));
        all.add_all(&micros([3, 3]));
        let longest = Duration::from_nanos(u64::MAX);
        let reported = all.percentile(100.0).unwrap();
        assert!(all.count() == 5 && longest - reported <= GRAIN, "{all:?}");
        assert_eq!(all.rows().map(|it| it.1).sum::<u64>(), 5);
        let end = all.rows().last().unwrap().0;
        assert!(longest - end <= GRAIN, "{end:?}");
    }

    #[test]
    fn rows_double_and_the_empty_ones_between_are_there() {
        let mut times = Times::default();
        [100, 120, 128, 129, 1_000]
            .into_iter()
            .for_each(|it| times.add(Duration::from_nanos(it)));
        let rows: Vec<_> = times
            .rows()
            .map(|(end, count)| (end.as_nanos(), count))
            .collect();
        assert_eq!(rows, [(128, 2), (256, 2), (512, 0), (1_024, 1)]);
        assert_eq!(Times::default().rows().count(), 0);
    }
}
