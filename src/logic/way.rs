//! How long the way to the nodes takes, without a queue of ours.

use std::time::Duration;

use crate::time::Tick;

/// The way is the shortest answer within this time, and as long before it.
const WINDOW: Duration = Duration::from_secs(10);

/// A way shorter than this costs less than what it costs to send, run and answer batches that are smaller. Where the way is
/// longer, a batch goes out as often: with 64 threads and a way of 5 ms, three at a time would make a pair a fifth longer.
const SHORT: Duration = Duration::from_micros(250);
/// With fewer batches under way commands wait longer for their turn where the way is not short; with more, batches are small.
const BATCHES: usize = 3;

/// How long the way takes, together with the time that is needed for one command.
///
/// A way that has become longer is known after twice the window: nothing that was measured once counts for ever.
#[derive(Clone, Debug, Default)]
pub(crate) struct Way {
    /// When this window began, and the shortest time in it.
    window: Option<(Tick, Duration)>,
    /// The shortest time in the window before.
    before: Option<Duration>,
}

impl Way {
    pub(crate) fn on_answer(&mut self, now: Tick, took: Duration) {
        let Some((began, shortest)) = self.window else {
            self.window = Some((now, took));
            return;
        };
        let age = now.saturating_duration_since(began);
        if age < WINDOW {
            self.window = Some((began, shortest.min(took)));
        } else {
            // Nobody has looked for longer than the next window: then this one is too old as well.
            self.before = Some(shortest).filter(|_| age < WINDOW.saturating_mul(2));
            self.window = Some((now, took));
        }
    }

    /// `None` if nothing is known.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        let this = self.window.map(|(_, shortest)| shortest);
        this.into_iter().chain(self.before).min()
    }
}

/// How many commands a node answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    /// When this window began, and how many came in it.
    window: Option<(Tick, usize)>,
    /// How many came in the window before.
    before: usize,
}

impl Answers {
    /// So many have come. `window`: a quarter of the response timeout or more, see [`in_time`].
    pub(crate) fn on_answers(&mut self, count: usize, window: Duration, now: Tick) {
        let Some((began, so_far)) = self.window else {
            // Nobody knows how long the first took.
            self.window = Some((now, 0));
            return;
        };
        let (age, count) = (
            now.saturating_duration_since(began),
            so_far.saturating_add(count),
        );
        if age < window {
            self.window = Some((began, count));
            return;
        }
        // Answers to many commands come at once, after all the time that these took.
        let part = u128::try_from(count)
            .unwrap_or(u128::MAX)
            .saturating_mul(window.as_nanos());
        let part = part.checked_div(age.as_nanos()).unwrap_or_default();
        self.before = usize::try_from(part).unwrap_or(usize::MAX);
        self.window = Some((now, 0));
    }

    /// How many may be under way: as many as it answers in two windows, so in half the response timeout.
    ///
    /// Not as many as are given while it answers in time: callers that are ten times as fast as the node give it more in one
    /// window than it answers within the response timeout.
    pub(crate) fn in_two_windows(&self) -> usize {
        self.window
            .map_or(0, |it| it.1)
            .max(self.before)
            .saturating_mul(2)
    }
}

/// How many batches of commands may be under way before further commands wait, to be written together when an answer comes:
/// every batch costs a wake-up here and one at the server, and a command waits for as long as one is on its way.
pub(crate) fn batches(way: Option<Duration>) -> usize {
    let Some(way) = way else { return BATCHES };
    if way < SHORT {
        return 1;
    }
    let so_many = way
        .as_nanos()
        .checked_div(SHORT.as_nanos())
        .unwrap_or_default();
    usize::try_from(so_many).unwrap_or(usize::MAX).max(BATCHES)
}

/// An answer that takes longer has queued for longer than is good, at the node or on the way there.
pub(crate) fn in_time(way: Option<Duration>, response_timeout: Duration) -> Duration {
    let way = way.unwrap_or_default();
    way.saturating_add(way).max(part(response_timeout, 4))
}

/// One of so many equal parts of a time.
pub(super) fn part(of: Duration, parts: u32) -> Duration {
    of.checked_div(parts).unwrap_or(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    /// The way, in milliseconds, after answers at these seconds that took so many milliseconds.
    fn after(answers: &[(u64, u64)]) -> u128 {
        let (mut way, start) = (Way::default(), time::tick());
        for (at, took) in answers {
            way.on_answer(
                start.checked_add(Duration::from_secs(*at)).unwrap(),
                Duration::from_millis(*took),
            );
        }
        way.shortest().unwrap().as_millis()
    }

    #[test]
    fn h20_a_way_that_has_become_longer_is_known_after_two_windows() {
        assert_eq!(after(&[(0, 1)]), 1);
        assert_eq!(after(&[(0, 1), (9, 81)]), 1);
        assert_eq!(after(&[(0, 1), (9, 81), (11, 81)]), 1, "the window before");
        assert_eq!(after(&[(0, 1), (9, 81), (11, 81), (22, 81)]), 81);
        assert_eq!(after(&[(0, 81), (11, 90)]), 81);
        assert_eq!(after(&[(0, 81), (11, 90), (22, 90)]), 90);
    }

    #[test]
    fn batches_are_large_where_the_way_is_short_and_many_where_it_is_long() {
        let of = |micros| batches(Some(Duration::from_micros(micros)));
        assert_eq!((batches(None), of(250)), (BATCHES, BATCHES));
        assert_eq!(
            (of(1_000), of(5_000)),
            (4, 20),
            "one each quarter of a millisecond"
        );
        assert_eq!((of(249), of(0)), (1, 1));
    }

    #[test]
    fn what_was_measured_long_ago_counts_no_more_though_nothing_came_since() {
        assert_eq!(after(&[(0, 1), (19, 81)]), 1);
        assert_eq!(after(&[(0, 1), (20, 81)]), 81);
    }
}
