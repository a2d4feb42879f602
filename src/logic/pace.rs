//! How far callers are slowed down so that the slowest healthy node keeps up.
//!
//! A round ends at the majority, so nothing else holds callers back when another node, or the thread that serves it, gets
//! less processor time than they ask for: its queue would grow until it is of no use to any round, and locks would stand on
//! the others alone.

use std::time::Duration;

use crate::time::Tick;

/// The longest pause before a round.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// The shortest time that an answer takes is the shortest of this time, and of as long before.
const WINDOW: Duration = Duration::from_secs(30);

/// How long the answers of one node take: from when a command is given to when its answer is read, with the time that it
/// lies in our own queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lateness {
    /// When this window began, and the shortest time in it.
    window: Option<(Tick, Duration)>,
    /// The shortest time in the window before.
    before: Option<Duration>,
}

impl Lateness {
    /// An answer took so long. How much of that is too much: zero if nothing is wrong.
    ///
    /// Half of a response timeout is allowed for the queues, or as much as the way to the node and back takes: where that is
    /// long, commands wait for that long until there is room for another batch.
    pub(crate) fn on_answer(&mut self, now: Tick, took: Duration, response_timeout: Duration) -> Duration {
        let (began, shortest) = match self.window {
            Some((began, shortest)) if now.saturating_duration_since(began) < WINDOW => (began, shortest.min(took)),
            old => {
                self.before = old.map(|(_, shortest)| shortest);
                (now, took)
            }
        };
        self.window = Some((began, shortest));
        let way = self.before.map_or(shortest, |it| it.min(shortest));
        let allowed = way.saturating_add(way.max(half(response_timeout)));
        took.saturating_sub(allowed)
    }
}

/// How long a caller waits before it begins a round, for a node whose last answer came `since` ago and was late by `excess`.
///
/// A node that answers nothing holds nobody up: it hangs, and is stalled soon.
pub(crate) fn pause(excess: Duration, since: Duration, response_timeout: Duration) -> Duration {
    if half(response_timeout) < since { Duration::ZERO } else { excess.min(PAUSE_MAX) }
}

fn half(time: Duration) -> Duration {
    time.checked_div(2).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::arithmetic_side_effects, reason = "a test may overflow: it fails then")]

    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    const TIMEOUT: Duration = ms(100);

    /// What is too much of the last of these answers, one after the other every millisecond.
    fn excess(took: &[u64]) -> Duration {
        let (mut lateness, mut now, mut last) = (Lateness::default(), crate::time::tick(), Duration::ZERO);
        for it in took {
            now += ms(1);
            last = lateness.on_answer(now, ms(*it), TIMEOUT);
        }
        last
    }

    #[test]
    fn h6_callers_feel_a_queue_that_grows_at_a_healthy_node() {
        assert_eq!(excess(&[1, 2, 20, 51]), Duration::ZERO);
        assert_eq!(excess(&[1, 2, 20, 51, 61]), ms(10));
        assert_eq!(pause(ms(10), ms(1), TIMEOUT), ms(10));
        assert_eq!(pause(ms(90), ms(1), TIMEOUT), PAUSE_MAX);
    }

    #[test]
    fn h6_a_node_that_hangs_holds_nobody_up() {
        assert_eq!(pause(ms(90), ms(50), TIMEOUT), PAUSE_MAX);
        assert_eq!(pause(ms(90), ms(51), TIMEOUT), Duration::ZERO);
    }

    #[test]
    fn a_node_that_is_far_away_holds_nobody_up() {
        // A batch waits until one of those before it is back.
        assert_eq!(excess(&[80, 90, 160, 160]), Duration::ZERO);
        assert_eq!(excess(&[80, 90, 160, 170]), ms(10));
    }

    #[test]
    fn a_way_that_has_become_longer_is_known_after_a_minute() {
        let (mut lateness, begin) = (Lateness::default(), crate::time::tick());
        let mut at = |seconds: u64, took: u64| lateness.on_answer(begin + ms(seconds * 1_000), ms(took), TIMEOUT);
        assert_eq!(at(0, 1), Duration::ZERO);
        assert_eq!(at(20, 81), ms(30));
        assert_eq!(at(31, 81), ms(30));
        assert_eq!(at(62, 81), Duration::ZERO);
    }
}
