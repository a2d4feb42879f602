//! Time that a test has added: see `testing::Nodes::advance`.

use std::time::Duration;

use crate::logic::eligibility::{Eligibility, Times};

impl Times {
    /// How much was added in between: about, and not less.
    pub(crate) fn added(&self) -> Duration {
        let ticks = self.answered.saturating_duration_since(self.asked);
        self.answered_at.since(self.asked_at).saturating_sub(ticks)
    }
}

impl Eligibility {
    /// So much was added here and there: all that lies behind is longer ago.
    pub(crate) fn on_advance(&mut self, by: Duration) {
        for quarantine in [&mut self.restarted, &mut self.stepped].into_iter().flatten() {
            quarantine.served = quarantine.served.saturating_add(by);
        }
        for at in [&mut self.met, &mut self.restarted_until, &mut self.told_until] {
            *at = at.and_then(|it| it.checked_sub(by));
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::arithmetic_side_effects, reason = "a test may overflow: it fails then")]

    use super::*;
    use crate::answer::ServerInfo;
    use crate::time::Moment;

    const S: Duration = Duration::from_secs(1);

    fn times(answered_at: Duration) -> Times {
        let (tick, wall) = (crate::time::tick(), Duration::from_secs(1_700_000_000));
        let moment = |after: Duration| Moment::at(500 * S + after, wall + after);
        Times { asked: tick, asked_at: moment(Duration::ZERO), answered: tick + S, answered_at: moment(answered_at) }
    }

    #[test]
    fn when_time_is_added_a_quarantine_ends_by_so_much_earlier() {
        let mut node = Eligibility::new(Some(10 * S), 0.01);
        let times = times(S);
        node.on_connect(&ServerInfo { run_id: Some("a".to_owned()), ..ServerInfo::default() }, times);
        node.quarantine(10 * S, times.answered);
        assert_eq!(node.quarantine_left(times.answered), 10 * S);
        node.on_advance(4 * S);
        assert_eq!(node.quarantine_left(times.answered), 6 * S);
        node.on_advance(6 * S);
        assert_eq!(node.quarantine_left(times.answered), Duration::ZERO);
    }

    #[test]
    fn what_was_added_between_a_question_and_its_answer_is_what_only_the_clock_of_leases_shows() {
        assert_eq!((times(S).added(), times(6 * S).added()), (Duration::ZERO, 5 * S));
    }
}
