//! The times at which the command must end.
//!
//! ```text
//!   extended                term_at         kill_at      guardian_at    use_until
//!      |------------------------|--- kill_after ---|-- turn --|--- slack ---|
//! ```
//!
//! Each extension moves all of them. The clock is the one that all processes share.

use std::time::Duration;

use quorlock::LostReason;

const KILL_AFTER: Duration = Duration::from_secs(5);

/// Killed processes need time to go, above all on a busy machine.
const SLACK: Duration = Duration::from_millis(200);

/// The guardian acts later than quorlock, so it kills only if quorlock does not.
const TURN: Duration = Duration::from_millis(100);

/// The time to finish after a loss, although another client may hold the lock already.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Times {
    kill_after: Duration,
    turn: Duration,
    slack: Duration,
    look: Duration,
}

impl Times {
    /// For a ttl, and the value of --kill-after.
    pub(crate) fn new(ttl: Duration, kill_after: Option<Duration>) -> Result<Times, String> {
        // An extension is due after a third of the ttl. There is time for a second one before TERM.
        let Some(longest) = (ttl / 2).checked_sub(Duration::from_secs(1)) else {
            return Err(format!("--ttl is {ttl:?}: run needs at least 2s"));
        };
        let kill_after = kill_after.unwrap_or(KILL_AFTER.min(longest));
        if longest < kill_after {
            return Err(format!(
                "--kill-after is {kill_after:?}: at most {longest:?} with a ttl of {ttl:?}"
            ));
        }
        let look = (ttl / 16).min(Duration::from_secs(1));
        Ok(Times {
            kill_after,
            turn: TURN.min(ttl / 20),
            slack: SLACK.min(ttl / 10),
            look,
        })
    }

    /// `left` is the remaining validity. It must be read after `now`, so that no time counts twice.
    pub(crate) fn kill_at(&self, now: Duration, left: Duration) -> Duration {
        (now + left).saturating_sub(self.slack + self.turn)
    }

    /// The time of the guardian's KILL.
    pub(crate) fn guardian_at(&self, kill_at: Duration) -> Duration {
        kill_at + self.turn
    }

    pub(crate) fn term_at(&self, kill_at: Duration) -> Duration {
        kill_at.saturating_sub(self.kill_after)
    }

    /// For a command that gets TERM now. Never later than `kill_at`.
    pub(crate) fn kill_soon(&self, now: Duration, kill_at: Duration) -> Duration {
        kill_at.min(now + self.kill_after)
    }

    /// The same after a loss.
    pub(crate) fn kill_lost(&self, now: Duration, lost: LostReason, kill_at: Duration) -> Duration {
        match lost {
            LostReason::Expired | LostReason::MaxHold | LostReason::LeaseOver => now,
            _ => kill_at.min(now + self.kill_after.min(GRACE)),
        }
    }

    /// The interval of checks for an extension.
    pub(crate) fn look(&self) -> Duration {
        self.look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn two_extensions_fit_before_the_term_signal() {
        let times = Times::new(30 * SECOND, None).unwrap();
        assert_eq!(times.kill_after, 5 * SECOND);
        assert_eq!(
            Times::new(30 * SECOND, Some(14 * SECOND)).map(|it| it.kill_after),
            Ok(14 * SECOND)
        );
        assert!(Times::new(30 * SECOND, Some(14 * SECOND + Duration::from_nanos(1))).is_err());
        assert_eq!(
            Times::new(4 * SECOND, None).map(|it| it.kill_after),
            Ok(SECOND)
        );
        assert_eq!(
            Times::new(2 * SECOND, None).map(|it| it.kill_after),
            Ok(Duration::ZERO)
        );
        assert!(Times::new(Duration::from_millis(1_999), None).is_err());
    }

    #[test]
    fn term_comes_first_and_kill_before_the_lease_ends() {
        for seconds in 2..60 {
            let ttl = seconds * SECOND;
            let times = Times::new(ttl, None).unwrap();
            let kill_at = times.kill_at(100 * SECOND, ttl);
            assert!(kill_at < times.guardian_at(kill_at), "{seconds}");
            assert!(
                times.guardian_at(kill_at) + ttl / 300 < 100 * SECOND + ttl,
                "{seconds}"
            );
            assert_eq!(
                times.term_at(kill_at) + times.kill_after,
                kill_at,
                "{seconds}"
            );
            // The lock was extended for two thirds of its time, and TERM has not come.
            assert!(100 * SECOND + ttl / 3 < times.term_at(kill_at), "{seconds}");
            assert!(times.look() < ttl / 10, "{seconds}");
        }
    }

    #[test]
    fn no_reason_moves_the_announced_end_back() {
        let times = Times::new(30 * SECOND, None).unwrap();
        for (kill_at, soon, gone) in [(10, 10, 10), (13, 13, 11), (40, 15, 11)] {
            let (kill_at, now) = (kill_at * SECOND, 10 * SECOND);
            assert_eq!(times.kill_soon(now, kill_at), soon * SECOND);
            assert_eq!(
                times.kill_lost(now, LostReason::Gone, kill_at),
                gone * SECOND
            );
            assert_eq!(times.kill_lost(now, LostReason::Expired, kill_at), now);
        }
    }
}
