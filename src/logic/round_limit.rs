//! Limit of the rounds under way.

use std::time::Duration;

use crate::time::Tick;

/// First limit, enough for the usual load of a machine: without a time-out fewer calls never wait
/// for their turn.
const FIRST: usize = 128;
/// Lowest limit after time-outs.
const MIN: usize = 4;
/// Number of answered rounds that raise the limit by one, if the limit is not lower.
const ANSWERED_FOR_ONE: usize = 32;
/// Two time-outs that are further apart than this show pauses of a machine, and no lasting load.
const ALONE: Duration = Duration::from_secs(10);
/// More than the threads that a process can have.
const MAX: usize = 1 << 20;

/// Halved by a time-out, raised by one per 32 rounds answered while calls wait; after a lone
/// time-out by one per round, up to the rounds that were under way. Rounds under way at a cut show
/// nothing about the new limit, so they cause no further cut.
#[derive(Debug)]
pub(crate) struct RoundLimit {
    pub(crate) rounds: usize,
    /// Rounds answered while calls wait, since the last change of the limit.
    answered: usize,
    cut_at: Option<Tick>,
    /// After a lone time-out each answered round raises the limit up to here.
    recovers_to: usize,
}

impl Default for RoundLimit {
    fn default() -> RoundLimit {
        RoundLimit {
            rounds: FIRST,
            answered: 0,
            cut_at: None,
            recovers_to: 0,
        }
    }
}

impl RoundLimit {
    /// Notes a round answered by a majority while calls wait.
    pub(crate) fn on_answered(&mut self) {
        self.answered = self.answered.saturating_add(1);
        let needed = if self.rounds < self.recovers_to {
            1
        } else {
            ANSWERED_FOR_ONE.min(self.rounds)
        };
        if needed <= self.answered {
            self.rounds = self.rounds.saturating_add(1).min(MAX);
            self.answered = 0;
        }
    }

    /// Notes the time-out of a round that began at `asked`, with `under_way` rounds: an unused part
    /// of the limit did not slow it down.
    pub(crate) fn on_timeout(&mut self, asked: Tick, now: Tick, under_way: usize) {
        if self.cut_at.is_none_or(|cut_at| cut_at <= asked) {
            let used = self.rounds.min(under_way);
            let is_alone = |it| ALONE <= now.saturating_duration_since(it);
            self.recovers_to = if self.cut_at.is_none_or(is_alone) {
                used
            } else {
                0
            };
            self.rounds = (used / 2).max(MIN).min(self.rounds);
            self.answered = 0;
            self.cut_at = Some(now);
        }
    }

    /// With this limit.
    #[cfg(test)]
    pub(crate) fn of(rounds: usize) -> RoundLimit {
        RoundLimit {
            rounds,
            ..RoundLimit::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    #[test]
    fn h5_rounds_sent_before_a_cut_of_the_limit_cut_it_no_further() {
        let asked = time::tick();
        let now = asked + Duration::from_millis(100);
        let mut limit = RoundLimit::default();

        for _ in 0..FIRST {
            limit.on_timeout(asked, now, FIRST);
        }
        assert_eq!(limit.rounds, FIRST / 2);
        limit.on_timeout(now, now, FIRST / 2);
        assert_eq!(limit.rounds, FIRST / 4);
    }

    #[test]
    fn h5_a_timeout_halves_the_rounds_in_use_down_to_a_minimum() {
        let start = time::tick();
        let mut limit = RoundLimit::default();
        limit.on_timeout(start, start, 40);
        assert_eq!(limit.rounds, 20, "half of 40");
        for _ in 0..10 {
            limit.on_timeout(start, start, 1);
        }
        assert_eq!(limit.rounds, MIN);
    }

    #[test]
    fn h5_a_lone_timeout_is_recovered_quickly_and_the_next_is_not() {
        let start = time::tick();
        let mut limit = RoundLimit::of(200);
        limit.on_timeout(start, start, 200);
        assert_eq!(limit.rounds, 100);
        (0..100).for_each(|_| limit.on_answered());
        assert_eq!(limit.rounds, 200);
        (0..ANSWERED_FOR_ONE).for_each(|_| limit.on_answered());
        assert_eq!(limit.rounds, 201, "what was never tried takes its time");

        let soon = start + Duration::from_secs(1);
        limit.on_timeout(soon, soon, 200);
        (0..ANSWERED_FOR_ONE).for_each(|_| limit.on_answered());
        assert_eq!(limit.rounds, 101);

        let later = soon + ALONE;
        limit.on_timeout(later, later, 200);
        assert_eq!(limit.rounds, 50);
        (0..51).for_each(|_| limit.on_answered());
        assert_eq!(limit.rounds, 101);
    }

    #[test]
    fn h5_rounds_that_are_answered_while_calls_wait_raise_the_limit() {
        let mut limit = RoundLimit::of(MIN);
        for _ in 0..MIN {
            assert_eq!(limit.rounds, MIN);
            limit.on_answered();
        }
        assert_eq!(limit.rounds, MIN + 1);
        let mut limit = RoundLimit::of(MAX);
        (0..ANSWERED_FOR_ONE).for_each(|_| limit.on_answered());
        assert_eq!(limit.rounds, MAX);
    }
}
