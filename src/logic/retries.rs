//! Retries of failed extensions, at one pace for all locks of a manager, and their warnings.
//!
//! Thousands of simultaneous retries would delay the next answers.

use std::time::Duration;

use crate::time::Tick;

/// Share of one retry in the common pace.
const EACH: Duration = Duration::from_micros(100);
/// The same while answers are late.
const EACH_WHILE_LATE: Duration = Duration::from_micros(400);
/// Shortest time between two warnings of failed extensions.
const WARNED_EVERY: Duration = Duration::from_secs(1);

/// The retries of a manager.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    /// Turn of the last retry.
    last: Option<Tick>,
    logged_at: Option<Tick>,
}

impl Retries {
    /// Pause of a lock without a confirmation: until its turn, and at least `least`.
    ///
    /// At most half of the time `left` of its lease. So the lock that ends soonest comes first, and
    /// more often near its end.
    pub(crate) fn wait(
        &mut self,
        least: Duration,
        left: Duration,
        is_late: bool,
        now: Tick,
    ) -> Duration {
        let each = if is_late { EACH_WHILE_LATE } else { EACH };
        let turn = self
            .last
            .map_or(now, |it| it.max(now))
            .checked_add(each)
            .unwrap_or(now);
        let wait = turn.saturating_duration_since(now);
        let urgent = left.checked_div(2).unwrap_or(left);
        if wait <= urgent {
            self.last = Some(turn);
        }
        wait.min(urgent).max(least)
    }

    /// Whether the log may warn of a failed extension now. Notes the warning.
    pub(crate) fn may_warn(&mut self, now: Tick) -> bool {
        let may = self
            .logged_at
            .is_none_or(|it| WARNED_EVERY <= now.saturating_duration_since(it));
        if may {
            self.logged_at = Some(now);
        }
        may
    }
}

/// Of several locks without a confirmed extension: their number, and the one with the least time
/// left. `None` for one lock: the log names that one alone.
pub(crate) fn summary<L>(locks: Vec<L>, left: impl Fn(&L) -> Duration) -> Option<(usize, L)> {
    let count = locks.len();
    let first = locks.into_iter().min_by_key(left)?;
    (1 < count).then_some((count, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(50);
    const LEFT: Duration = Duration::from_secs(6);

    fn waits(
        retries: &mut Retries,
        count: u32,
        left: Duration,
        is_late: bool,
        now: Tick,
    ) -> Vec<Duration> {
        (0..count)
            .map(|_| retries.wait(LEAST, left, is_late, now))
            .collect()
    }

    #[test]
    fn h21_retries_of_a_manager_share_one_rate_lower_while_answers_are_late() {
        for (is_late, a_second) in [(false, 10_000), (true, 2_500)] {
            let mut retries = Retries::default();
            let start = crate::time::tick();
            let waits = waits(&mut retries, 2 * a_second, LEFT, is_late, start);
            let within =
                |time| u32::try_from(waits.iter().filter(|it| **it <= time).count()).unwrap();
            assert_eq!(
                (waits[0], within(Duration::from_secs(1))),
                (LEAST, a_second),
                "late: {is_late}"
            );
            assert_eq!(within(Duration::from_secs(2)), 2 * a_second);
            // What was planned has had its turn by then.
            assert_eq!(retries.wait(LEAST, LEFT, is_late, start + LEFT), LEAST);
        }
    }

    #[test]
    fn h21_locks_near_their_end_are_retried_first_and_soonest() {
        let mut retries = Retries::default();
        let now = crate::time::tick();
        waits(&mut retries, 25_000, LEFT, false, now);

        let wait = |retries: &mut Retries, left| {
            retries
                .wait(LEAST, Duration::from_millis(left), false, now)
                .as_millis()
        };
        let urgent = [6_000, 2_000, 400, 60, 0].map(|left| wait(&mut retries, left));

        assert_eq!(urgent, [2_500, 1_000, 200, 50, 50]);
        assert_eq!(
            wait(&mut retries, 6_000),
            2_500,
            "what is urgent takes nobody's turn"
        );
    }

    #[test]
    fn the_log_warns_of_failed_extensions_once_a_second() {
        let mut retries = Retries::default();
        let start = crate::time::tick();
        let said = [0, 1, 999, 1_000, 1_500, 7_000]
            .map(|it| retries.may_warn(start + Duration::from_millis(it)));
        assert_eq!(said, [true, false, false, true, false, true]);
    }

    #[test]
    fn a_summary_has_the_number_of_locks_and_the_first_to_end() {
        let of =
            |locks: &[(&'static str, u64)]| summary(locks.to_vec(), |it| Duration::from_secs(it.1));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("a", 1)]), None);
        assert_eq!(of(&[("a", 3), ("b", 1), ("c", 2)]), Some((3, ("b", 1))));
    }
}
