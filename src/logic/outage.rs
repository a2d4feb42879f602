//! Outages without a majority, and how long calls wait for one.

use std::time::Duration;

use crate::error::NodeAnswer;
use crate::logic::ballot::quorum;
use crate::time::Tick;

/// Rounds further apart show nothing about the time between them: two failures need not be one
/// outage.
const APART: Duration = Duration::from_secs(30);
/// Shortest time between two warnings of outages.
const WARNED_EVERY: Duration = Duration::from_secs(60);

/// The outage of a manager, from the start and end of each round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    apart: Duration,
    seen: Option<OngoingOutage>,
    /// Time of the last warning.
    logged_at: Option<Tick>,
}

#[derive(Clone, Copy, Debug)]
struct OngoingOutage {
    since: Tick,
    /// End of the last round without a majority.
    last: Tick,
    /// Whether the log has warned of it.
    logged: bool,
}

impl Outage {
    /// `longest_pause`: longest pause of a waiting call between two rounds.
    pub(crate) fn new(longest_pause: Duration) -> Outage {
        Outage {
            apart: longest_pause.max(APART),
            seen: None,
            logged_at: None,
        }
    }

    /// Notes any answer of a majority. Returns the start of the outage, if the log has warned of
    /// it.
    pub(crate) fn on_majority(&mut self) -> Option<Tick> {
        self.seen.take().filter(|it| it.logged).map(|it| it.since)
    }

    /// Notes a round without a majority. Returns whether the log has to warn.
    pub(crate) fn on_failure(&mut self, asked: Tick, now: Tick) -> bool {
        let known = self
            .seen
            .filter(|it| asked.saturating_duration_since(it.last) <= self.apart);
        let may_log = self
            .logged_at
            .is_none_or(|it| WARNED_EVERY <= now.saturating_duration_since(it));
        let is_news = known.is_none() && may_log;
        if is_news {
            self.logged_at = Some(now);
        }
        let outage = known.unwrap_or(OngoingOutage {
            since: now,
            last: now,
            logged: is_news,
        });
        self.seen = Some(OngoingOutage {
            last: now,
            ..outage
        });
        is_news
    }

    /// Start of the outage; `None` without one.
    pub(crate) fn since(&self) -> Option<Tick> {
        self.seen.map(|it| it.since)
    }
}

/// Whether a call gives up after a round without a majority. `own`: start of its own outage;
/// `of_manager`: start of the manager's.
pub(crate) fn is_hopeless(
    own: Tick,
    of_manager: Option<Tick>,
    patience: Duration,
    now: Tick,
) -> bool {
    let since = of_manager.map_or(own, |it| it.min(own));
    patience <= now.saturating_duration_since(since)
}

/// Whether a majority of the nodes rejects this user until somebody changes settings: waiting does
/// not help.
pub(crate) fn is_of_access(rows: &[NodeAnswer]) -> bool {
    let refuses =
        |row: &&NodeAnswer| matches!(row, NodeAnswer::Failed(failure) if failure.is_of_access());
    quorum(rows.len()) <= rows.iter().filter(refuses).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NodeFailure;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn outage() -> (Outage, Tick) {
        (Outage::new(s(1)), crate::time::tick())
    }

    #[test]
    fn h8_an_outage_begins_with_the_first_round_that_fails_and_ends_with_a_majority() {
        let (mut outage, start) = outage();
        assert_eq!(outage.since(), None);
        outage.on_failure(start, start + s(1));
        outage.on_failure(start + s(2), start + s(3));
        assert_eq!(outage.since(), Some(start + s(1)));

        outage.on_majority();
        assert_eq!(outage.since(), None);
        outage.on_failure(start + s(4), start + s(5));
        assert_eq!(outage.since(), Some(start + s(5)));
    }

    #[test]
    fn an_outage_is_logged_once_with_its_end_and_once_a_minute() {
        let (mut outage, start) = outage();
        assert!(outage.on_failure(start, start));
        assert!(!outage.on_failure(start + s(1), start + s(1)));
        assert_eq!(outage.on_majority(), Some(start));
        assert_eq!(outage.on_majority(), None);

        assert!(!outage.on_failure(start + s(2), start + s(2)));
        assert_eq!(outage.on_majority(), None, "the log has not said it");
        assert!(!outage.on_failure(start + s(59), start + s(59)));
        assert!(
            !outage.on_failure(start + s(61), start + s(61)),
            "the same one"
        );
        assert_eq!(outage.on_majority(), None);
        assert!(outage.on_failure(start + s(62), start + s(62)));
    }

    #[test]
    fn only_a_login_refused_by_a_majority_ends_an_outage_early() {
        let failed = NodeAnswer::Failed;
        let down = || NodeFailure::Connect {
            reason: "refused".to_owned(),
        };
        let refusals = [
            NodeFailure::WRONG_PASSWORD,
            NodeFailure::NO_PASSWORD,
            NodeFailure::access("not permitted: evalsha"),
        ];
        for refusal in refusals {
            let rows = |others: [NodeAnswer; 2]| [&[failed(refusal.clone())], &others[..]].concat();
            assert!(
                is_of_access(&rows([failed(NodeFailure::NO_PASSWORD), failed(down())])),
                "{refusal}"
            );
            assert!(
                is_of_access(&rows([NodeAnswer::Pending, failed(refusal.clone())])),
                "{refusal}"
            );
            assert!(
                !is_of_access(&rows([failed(down()), failed(down())])),
                "{refusal}"
            );
            assert!(
                !is_of_access(&rows([NodeAnswer::Granted, NodeAnswer::Pending])),
                "{refusal}"
            );
        }
        for other in [
            down(),
            NodeFailure::Loading,
            NodeFailure::Busy {
                reason: "busy".into(),
            },
        ] {
            assert!(!is_of_access(&[failed(other.clone())]), "{other}");
        }
    }

    #[test]
    fn h8_failures_that_are_far_apart_are_two_outages() {
        let (mut outage, start) = outage();
        outage.on_failure(start, start);
        outage.on_failure(start + s(30), start + s(90));
        assert_eq!(outage.since(), Some(start), "a round may take its time");
        outage.on_failure(start + s(121), start + s(122));
        assert_eq!(outage.since(), Some(start + s(122)));
    }

    #[test]
    fn h8_rounds_as_far_apart_as_a_waiting_call_makes_them_see_one_outage() {
        let start = crate::time::tick();
        let mut outage = Outage::new(s(300));
        outage.on_failure(start, start);
        outage.on_failure(start + s(300), start + s(300));
        assert_eq!(outage.since(), Some(start));
    }

    #[test]
    fn h8_the_outage_timeout_counts_from_the_start_of_the_outage() {
        let start = crate::time::tick();
        let now = start + s(12);
        assert!(is_hopeless(now, Some(start), PATIENCE, now));
        assert!(
            is_hopeless(start, None, PATIENCE, now),
            "others reach a majority; this one does not"
        );
        assert!(!is_hopeless(now, None, PATIENCE, now));
        assert!(!is_hopeless(
            start + s(3),
            Some(start + s(4)),
            PATIENCE,
            now
        ));
        assert!(is_hopeless(now, None, Duration::ZERO, now));
        assert!(!is_hopeless(start, Some(start), Duration::MAX, now));
    }
}
