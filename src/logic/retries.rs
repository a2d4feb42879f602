//! Extensions that failed: when they are tried again, all locks of a manager together, and when the log says so.
//!
//! Thousands of retries that come at once would keep the next answers late.

use std::time::Duration;

use crate::time::Tick;

/// What one retry takes of the pace that all of them share.
const EACH: Duration = Duration::from_micros(100);
/// The same while nodes owe answers for longer than the response timeout.
const EACH_WHILE_LATE: Duration = Duration::from_micros(400);
/// The log warns of failed extensions no more often.
const SAID_EVERY: Duration = Duration::from_secs(1);

/// The retries of a manager.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    /// When the last one that has a turn has it.
    last: Option<Tick>,
    said_at: Option<Tick>,
    /// Extensions that failed since then, and were not worth a line.
    unsaid: u64,
}

impl Retries {
    /// After how long a lock without a confirmation is looked after again: in its turn, and after `least` at least.
    ///
    /// A lock waits for half of what is `left` of its lease at most. So the one that ends soonest comes first, and comes more
    /// often the nearer its end is.
    pub(crate) fn wait(&mut self, least: Duration, left: Duration, is_late: bool, now: Tick) -> Duration {
        let each = if is_late { EACH_WHILE_LATE } else { EACH };
        let turn = self.last.map_or(now, |it| it.max(now)).checked_add(each).unwrap_or(now);
        let (wait, urgent) = (turn.saturating_duration_since(now), left.checked_div(2).unwrap_or(left));
        if wait <= urgent {
            self.last = Some(turn);
        }
        wait.min(urgent).max(least)
    }

    /// An extension has failed. If that is worth a line of the log, how many more have failed since the last line.
    pub(crate) fn say(&mut self, now: Tick) -> Option<u64> {
        if self.said_at.is_some_and(|it| now.saturating_duration_since(it) < SAID_EVERY) {
            self.unsaid = self.unsaid.saturating_add(1);
            return None;
        }
        self.said_at = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(50);
    const LEFT: Duration = Duration::from_secs(6);

    fn waits(retries: &mut Retries, count: u32, left: Duration, is_late: bool, now: Tick) -> Vec<Duration> {
        (0..count).map(|_| retries.wait(LEAST, left, is_late, now)).collect()
    }

    #[test]
    fn h21_the_retries_of_a_manager_share_one_pace_which_falls_while_answers_are_late() {
        for (is_late, a_second) in [(false, 10_000), (true, 2_500)] {
            let (mut retries, start) = (Retries::default(), crate::time::tick());
            let waits = waits(&mut retries, 2 * a_second, LEFT, is_late, start);
            let within = |time| u32::try_from(waits.iter().filter(|it| **it <= time).count()).unwrap();
            assert_eq!((waits[0], within(Duration::from_secs(1))), (LEAST, a_second), "late: {is_late}");
            assert_eq!(within(Duration::from_secs(2)), 2 * a_second);
            // What was planned has had its turn by then.
            assert_eq!(retries.wait(LEAST, LEFT, is_late, start + LEFT), LEAST);
        }
    }

    #[test]
    fn h21_of_many_locks_those_that_end_soonest_are_tried_again_first_and_soonest_near_their_end() {
        let (mut retries, now) = (Retries::default(), crate::time::tick());
        waits(&mut retries, 25_000, LEFT, false, now);

        let wait =
            |retries: &mut Retries, left| retries.wait(LEAST, Duration::from_millis(left), false, now).as_millis();
        let urgent = [6_000, 2_000, 400, 60, 0].map(|left| wait(&mut retries, left));

        assert_eq!(urgent, [2_500, 1_000, 200, 50, 50]);
        assert_eq!(wait(&mut retries, 6_000), 2_500, "what is urgent takes nobody's turn");
    }

    #[test]
    fn the_log_says_once_a_second_that_extensions_fail_and_then_how_many() {
        let (mut retries, start) = (Retries::default(), crate::time::tick());
        let said = [0, 1, 999, 1_000, 1_500, 7_000].map(|it| retries.say(start + Duration::from_millis(it)));
        assert_eq!(said, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
