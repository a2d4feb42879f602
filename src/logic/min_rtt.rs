//! Minimum round-trip time to a server, excluding our own queueing.

use std::time::Duration;

use crate::time::Tick;

/// Window of the fastest answer, together with the window before.
const WINDOW: Duration = Duration::from_secs(10);

/// Round trip below which larger batches pay off. Above it a batch is sent about as often as this:
/// with 64 threads and 5 ms, three batches at a time would make a pair a fifth longer.
const SHORT: Duration = Duration::from_micros(250);
/// Smallest number of batches under way for longer round trips: with fewer, commands wait longer;
/// with more, batches are small.
const BATCHES: usize = 3;

/// The shortest recent round trip, including the time of one command.
///
/// A longer round trip shows after twice the window: no measurement counts for ever.
#[derive(Clone, Debug, Default)]
pub(crate) struct MinRtt {
    /// Start of this window, and the shortest time in it.
    window: Option<(Tick, Duration)>,
    /// Shortest time in the window before.
    before: Option<Duration>,
}

impl MinRtt {
    pub(crate) fn on_answer(&mut self, now: Tick, took: Duration) {
        let Some((began, shortest)) = self.window else {
            self.window = Some((now, took));
            return;
        };
        let age = now.saturating_duration_since(began);
        if age < WINDOW {
            self.window = Some((began, shortest.min(took)));
        } else {
            // After a pause longer than the next window, this one is too old as well.
            self.before = Some(shortest).filter(|_| age < WINDOW.saturating_mul(2));
            self.window = Some((now, took));
        }
    }

    /// `None` without an answer so far.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        let this = self.window.map(|(_, shortest)| shortest);
        this.into_iter().chain(self.before).min()
    }

    /// Number of batches under way above which commands wait, to be written together after an
    /// answer: every batch costs a wake-up here and one at the server, and a command waits while
    /// one is under way.
    pub(crate) fn batches(&self) -> usize {
        let Some(rtt) = self.shortest() else {
            return BATCHES;
        };
        if rtt < SHORT {
            return 1;
        }
        let often = rtt.as_nanos().checked_div(SHORT.as_nanos());
        let often = usize::try_from(often.unwrap_or_default());
        often.unwrap_or(usize::MAX).max(BATCHES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    /// The round trip, in milliseconds, after answers at these seconds that took so many
    /// milliseconds.
    fn after(answers: &[(u64, u64)]) -> u128 {
        let mut rtt = MinRtt::default();
        let start = time::tick();
        for (at, took) in answers {
            rtt.on_answer(
                start.checked_add(Duration::from_secs(*at)).unwrap(),
                Duration::from_millis(*took),
            );
        }
        rtt.shortest().unwrap().as_millis()
    }

    #[test]
    fn h20_a_longer_round_trip_counts_after_two_windows() {
        assert_eq!(after(&[(0, 1)]), 1);
        assert_eq!(after(&[(0, 1), (9, 81)]), 1);
        assert_eq!(after(&[(0, 1), (9, 81), (11, 81)]), 1, "the window before");
        assert_eq!(after(&[(0, 1), (9, 81), (11, 81), (22, 81)]), 81);
        assert_eq!(after(&[(0, 81), (11, 90)]), 81);
        assert_eq!(after(&[(0, 81), (11, 90), (22, 90)]), 90);
    }

    #[test]
    fn short_round_trips_have_large_batches_and_long_ones_many() {
        let of = |micros| {
            let mut rtt = MinRtt::default();
            rtt.on_answer(time::tick(), Duration::from_micros(micros));
            rtt.batches()
        };
        assert_eq!((MinRtt::default().batches(), of(250)), (BATCHES, BATCHES));
        assert_eq!(
            (of(1_000), of(5_000)),
            (4, 20),
            "one each quarter of a millisecond"
        );
        assert_eq!((of(249), of(0)), (1, 1));
    }

    #[test]
    fn old_measurements_expire_without_new_ones() {
        assert_eq!(after(&[(0, 1), (19, 81)]), 1);
        assert_eq!(after(&[(0, 1), (20, 81)]), 81);
    }
}
