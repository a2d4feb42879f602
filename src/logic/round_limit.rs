//! How many rounds may be under way at once.

use crate::time::Tick;

/// Enough for all that a machine ordinarily does at once: as long as nothing times out, fewer calls than this never wait for their
/// turn.
const FIRST: usize = 128;
/// Rounds that time out never cut it below this.
const MIN: usize = 4;
/// How many answered rounds raise the limit by one, if it is not lower.
const ANSWERED_FOR_ONE: usize = 32;
/// More than the threads that a process can have.
const MAX: usize = 1 << 20;

/// Halved when a round times out, and one more for 32 rounds that are answered while calls wait. Rounds that were under way at a cut say
/// nothing about the new limit, so they cause no other cut.
#[derive(Debug)]
pub(crate) struct RoundLimit {
    pub(crate) rounds: usize,
    /// Rounds that were answered while calls wait, since the limit was another one.
    answered: usize,
    cut_at: Option<Tick>,
}

impl Default for RoundLimit {
    fn default() -> RoundLimit {
        RoundLimit {
            rounds: FIRST,
            answered: 0,
            cut_at: None,
        }
    }
}

impl RoundLimit {
    /// A majority has answered a round while calls wait.
    pub(crate) fn on_answered(&mut self) {
        self.answered = self.answered.saturating_add(1);
        if ANSWERED_FOR_ONE.min(self.rounds) <= self.answered {
            self.rounds = self.rounds.saturating_add(1).min(MAX);
            self.answered = 0;
        }
    }

    /// A round has timed out that began at `asked`, while so many were `under_way`: what was allowed and not used did not slow it
    /// down.
    pub(crate) fn on_timeout(&mut self, asked: Tick, now: Tick, under_way: usize) {
        if self.cut_at.is_none_or(|cut_at| cut_at <= asked) {
            let used = self.rounds.min(under_way);
            self.rounds = (used / 2).max(MIN).min(self.rounds);
            self.answered = 0;
            self.cut_at = Some(now);
        }
    }

    /// With a limit of so many.
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
    use std::time::Duration;

    use super::*;
    use crate::time;

    #[test]
    fn h5_what_was_under_way_when_the_limit_was_cut_cuts_it_no_further() {
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
    fn h5_a_timeout_cuts_what_is_used_and_a_few_rounds_may_always_be_under_way() {
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
