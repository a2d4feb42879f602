//! A node's clock relative to ours: its steps and its time.
//!
//! Keys expire by the node's own wall clock. A step forward expires all of them early, as if the
//! node had lost them. A step back only lengthens their life. The node's time comes with its
//! answers and is compared with an unstepped clock of ours.

use std::time::Duration;

use crate::logic::ballot::quorum;

/// Smallest difference that counts as a step: a server reads its clock a little before it answers.
const GRAIN: i64 = 20_000;

/// Drift of two correct clocks: quartz by 100 ppm and time daemons by 500 ppm, on both sides. A
/// smaller difference never counts as a step, however small the margin is.
const ORDINARY: f64 = 0.0012;

/// Facts about a node's clock. Times are microseconds: the node's since 1970, ours on the clock of
/// leases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeClock {
    /// Allowed drift against our clock without a step.
    rate: f64,
    pub(super) seen: Option<ClockInterval>,
}

/// Interval of the difference of the two clocks, at some time not before `at`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockInterval {
    low: i64,
    high: i64,
    at: i64,
}

impl NodeClock {
    /// `share`: the margin's share of the ttl, an allowed drift.
    pub(crate) fn new(share: f64) -> NodeClock {
        NodeClock {
            rate: share.max(ORDINARY),
            seen: None,
        }
    }

    /// The node's clock showed `node` at some time between `asked` and `answered`. Returns the
    /// smallest possible step forward, if any: keys expired early. After a step back they live
    /// longer, which is harmless.
    ///
    /// Not detected: steps below 20 ms, steps within the response time, and steps before the first
    /// answer.
    pub(crate) fn on_answer(&mut self, node: u64, asked: u64, answered: u64) -> Option<Duration> {
        let [node, asked, answered] =
            [node, asked, answered].map(|it| i64::try_from(it).unwrap_or(i64::MAX));
        let new = ClockInterval {
            low: node.saturating_sub(answered),
            high: node.saturating_sub(asked),
            at: asked,
        };
        let old = self.seen.replace(new)?;
        let drift = drift(self.rate, answered.saturating_sub(old.at));
        let low = old.low.saturating_sub(drift);
        let high = old.high.saturating_add(drift);
        if high.saturating_add(GRAIN) < new.low {
            return Some(micros(new.low.saturating_sub(old.high)));
        }
        // Both intervals hold, except after a step back.
        let low = low.max(new.low);
        let high = high.min(new.high);
        if low <= high {
            self.seen = Some(ClockInterval {
                low,
                high,
                at: asked,
            });
        }
        None
    }

    /// Lead of the node's clock over the clock of
    /// [`Moment::boot_micros`](crate::time::Moment::boot_micros), at least and at most, if known.
    pub(crate) fn offset(&self) -> Option<(i64, i64)> {
        self.seen.map(|it| (it.low, it.high))
    }
}

/// The common time of all clients of the same nodes, microseconds since 1970: `wall`, our own
/// clock, if the nodes' clocks allow it, otherwise the earliest time that they allow. So a slow
/// client harms only itself; a fast one would cost all others a second round. Fencing tokens and
/// places in waiting lists use this time, because no client can check its own clock.
///
/// A place must be one number for all nodes. With waiting times on the nodes' own clocks, two calls
/// of nearly the same start could have different orders on different nodes. With one of three nodes
/// down, each call could be the first on one of the other two, and neither would ever get the lock.
///
/// `clocks`: times on the known clocks of nodes, at least and at most. `None` without a majority of
/// known clocks: one or two of many may be wrong as well.
pub(crate) fn time_for_all(
    wall: u64,
    clocks: impl Iterator<Item = (u64, u64)>,
    nodes: usize,
) -> Option<u64> {
    let (lows, highs): (Vec<_>, Vec<_>) = clocks.unzip();
    let is_known = quorum(nodes) <= lows.len();
    let low = median(lows)?;
    let high = median(highs)?;
    let is_right = (low..=high).contains(&wall);
    is_known.then_some(if is_right { wall } else { low })
}

/// A minority of wrong times cannot move the median far.
fn median(mut times: Vec<u64>) -> Option<u64> {
    times.sort_unstable();
    // The lower one of two: counters correct a slow time, and nothing corrects a fast one.
    times.get(times.len().saturating_sub(1) / 2).copied()
}

fn drift(rate: f64, elapsed: i64) -> i64 {
    let elapsed = micros(elapsed).as_secs_f64() * rate;
    let drift = Duration::try_from_secs_f64(elapsed).unwrap_or(Duration::MAX);
    i64::try_from(drift.as_micros()).unwrap_or(i64::MAX)
}

fn micros(time: i64) -> Duration {
    Duration::from_micros(u64::try_from(time).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        reason = "a test may overflow: it fails then"
    )]

    use super::*;
    use proptest::prelude::*;

    const S: u64 = 1_000_000;
    const T: u64 = 1_700_000_000 * S;

    #[test]
    fn c4_the_next_answer_shows_a_step_of_a_nodes_clock() {
        let mut clock = NodeClock::new(0.01);
        assert_eq!(clock.on_answer(T, 100 * S, 100 * S + 500), None);
        assert_eq!(clock.on_answer(T + S, 101 * S, 101 * S + 500), None);

        let step = clock.on_answer(T + 22 * S, 102 * S, 102 * S + 500);
        assert!(
            step.is_some_and(|by| by.as_millis().abs_diff(20_000) < 2),
            "{step:?}"
        );
        assert_eq!(
            clock.on_answer(T + 23 * S, 103 * S, 103 * S + 500),
            None,
            "seen once"
        );

        let back = clock.on_answer(T + 4 * S, 104 * S, 104 * S + 500);
        let again = clock.on_answer(T + 25 * S, 105 * S, 105 * S + 500);
        assert!(back.is_none() && again.is_some_and(|by| by.as_millis().abs_diff(20_000) < 2));
    }

    #[test]
    fn c4_differences_up_to_the_grain_are_no_step_and_larger_ones_are() {
        let grain = GRAIN as u64;
        // An answer that takes no time, at the time of the one before: the clocks had no time to
        // run apart.
        let second = |node: u64| {
            let mut clock = NodeClock::new(0.01);
            assert_eq!(clock.on_answer(T, 100 * S, 100 * S), None);
            clock.on_answer(node, 100 * S, 100 * S)
        };
        assert_eq!(second(T + grain), None);
        assert_eq!(
            second(T + grain + 1),
            Some(Duration::from_micros(grain + 1))
        );
    }

    #[test]
    fn the_answers_of_a_clock_narrow_its_offset_together() {
        let mut clock = NodeClock::new(0.0);
        let ahead = |it: u64| (T - 100 * S + it) as i64;
        assert_eq!(clock.offset(), None);
        clock.on_answer(T + 100, 100 * S, 100 * S + 100);
        assert_eq!(clock.offset(), Some((ahead(0), ahead(100))));
        // The second answer leaves no other time than this one.
        clock.on_answer(T + 150, 100 * S, 100 * S + 50);
        assert_eq!(clock.offset(), Some((ahead(100), ahead(100))));
        // The third says something else, within the grain: the latest is right.
        clock.on_answer(T + 300, 100 * S, 100 * S + 50);
        assert_eq!(clock.offset(), Some((ahead(250), ahead(300))));

        clock.seen = None;
        assert_eq!(clock.offset(), None);
        assert_eq!(
            clock.on_answer(T + 900 * S, 100 * S, 100 * S),
            None,
            "another clock shows another time"
        );
    }

    #[test]
    fn a_slow_answer_is_no_step() {
        let mut clock = NodeClock::new(0.01);
        assert_eq!(clock.on_answer(T, 100 * S, 100 * S), None);
        assert_eq!(
            clock.on_answer(T + 9 * S, 101 * S, 109 * S),
            None,
            "the node was stopped before it answered"
        );
        assert_eq!(
            clock.on_answer(T + 10 * S, 110 * S, 118 * S),
            None,
            "the answer was on its way for long"
        );
        let (low, high) = clock.offset().unwrap();
        assert!(
            high - low < 200_000,
            "what was known better is kept: {low} to {high}"
        );
    }

    #[test]
    fn a_clock_that_is_slewed_is_no_step() {
        let mut clock = NodeClock::new(0.1);
        for second in 0..1_000 {
            // chrony's fastest: 8.3 %.
            let node = T + second * S + second * S * 83 / 1_000;
            assert_eq!(clock.on_answer(node, second * S, second * S + 300), None);
        }
    }

    #[test]
    fn c5_ordinary_drift_is_no_step_without_any_margin_and_a_step_is_one() {
        let mut clock = NodeClock::new(0.0);
        let at = |second: u64| T + second * S + second * S * 12 / 10_000;
        for minute in 0..1_000 {
            let second = minute * 60;
            assert_eq!(
                clock.on_answer(at(second), second * S, second * S + 300),
                None,
                "after {minute} minutes"
            );
        }
        let step = clock.on_answer(at(59_941) + S / 5, 59_941 * S, 59_941 * S + 300);
        assert!(step.is_some());
    }

    #[test]
    fn no_time_of_a_node_panics() {
        let mut clock = NodeClock::new(f64::NAN);
        for node in [0, u64::MAX, 1, u64::MAX] {
            let _ = clock.on_answer(node, u64::MAX, 0);
            let _ = clock.offset();
        }
    }

    #[test]
    fn common_time_is_local_time_within_the_range_of_most_clocks() {
        let time =
            |wall, clocks: &[u64]| time_for_all(wall, clocks.iter().map(|it| (it - 1, it + 1)), 3);
        for (wall, clocks, expected) in [
            (50, [50, 50, 50], 50),
            (51, [50, 50, 50], 51),
            (49, [50, 50, 50], 49),
            (52, [50, 50, 50], 49),
            (900, [50, 50, 50], 49),
            (4, [50, 50, 50], 49),
            (900, [50, 9_999, 40], 49),
            (900, [50, 1, 60], 49),
            (4, [50, 1, 60], 49),
        ] {
            assert_eq!(time(wall, &clocks), Some(expected), "{wall} {clocks:?}");
        }
        assert_eq!(
            (time(900, &[70, 50]), time(51, &[70, 50])),
            (Some(49), Some(51)),
            "the lower one of two"
        );
        assert_eq!(
            (time(900, &[50]), time(900, &[])),
            (None, None),
            "less than a majority says nothing"
        );
    }

    proptest! {
        /// Whatever the answers' delays: a clock that only runs within the rate is never called
        /// stepped.
        #[test]
        fn c5_a_clock_within_the_rate_is_never_called_stepped(
            answers in proptest::collection::vec((0..30 * S, 0..3 * S, 0.0..1.0_f64), 2..40),
            part in -1.0..1.0_f64,
            share in proptest::sample::select(vec![0.0, 0.0001, 0.01, 0.1]),
        ) {
            let mut clock = NodeClock::new(share);
            let rate = part * share.max(ORDINARY);
            let mut now = 100 * S;
            for (pause, took, when) in answers {
                let asked = now + pause;
                let answered = asked + took;
                let read = asked + (took as f64 * when) as u64;
                let node = T + read + ((read as f64) * rate) as u64;
                prop_assert_eq!(clock.on_answer(node, asked, answered), None);
                now = answered;
            }
        }
    }
}
