//! How many commands a node may be behind before callers wait for it.
//!
//! A round ends at the majority. So nothing else holds callers back when one node, or the thread that serves it, gets less
//! done than they ask for: its queue would grow until every round has to do without that node.

use std::time::Duration;

use crate::logic::wait::share;
use crate::time::Tick;

/// The longest pause before a round. A node that cannot keep up with callers that all pause for so long is left out.
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(20);
const PAUSE_MIN: Duration = Duration::from_micros(100);
/// How many commands may be under way before anything is known: as many as rounds, see `admission`.
const FIRST: usize = 128;
/// Late answers never cut the allowance below this. They may be late for other reasons than our load.
const MIN: usize = 16;
/// The way is the shortest answer within this time, and as long before it.
const WINDOW: Duration = Duration::from_secs(30);

/// Answers that have come together from one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) now: Tick,
    /// How many they are.
    pub(crate) answers: usize,
    /// How long the last of them took: from when its command was given to when its answer was read.
    pub(crate) took: Duration,
    /// How many commands were under way when that one was given.
    pub(crate) ahead: usize,
}

/// A way shorter than this costs less than what it costs to send, run and answer batches that are smaller. Where the way is
/// longer, a batch goes out as often: with 64 threads and a way of 5 ms, three at a time would make a pair a fifth longer.
const SHORT_WAY: Duration = Duration::from_micros(250);
/// With fewer batches under way commands wait longer for their turn where the way is not short; with more, batches are small.
const BATCHES: usize = 3;

/// How many commands of ours may be under way to one node: as many as it answers within a quarter of the response timeout.
///
/// Answers come in the order of commands. So how long a command took, and how many others were before it, shows at once how
/// fast the node answers.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    commands: usize,
    /// How long a command takes that has others before it and behind it.
    each: Duration,
    way: Way,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { commands: FIRST, each: Duration::ZERO, way: Way::default() }
    }
}

impl Allowance {
    pub(crate) fn commands(&self) -> usize {
        self.commands
    }

    pub(crate) fn each(&self) -> Duration {
        self.each
    }

    /// How many batches of commands may be under way before further commands wait, to be written together when an answer
    /// comes: every batch costs a wake-up here and one at the server, and a command waits for as long as one is on its way.
    pub(crate) fn batches(&self) -> usize {
        let way = self.way.shortest();
        let so_many = way.as_nanos().checked_div(SHORT_WAY.as_nanos()).unwrap_or_default();
        let so_many = usize::try_from(so_many).unwrap_or(usize::MAX);
        if so_many == 0 && !way.is_zero() { 1 } else { so_many.max(BATCHES) }
    }

    pub(crate) fn on_answers(&mut self, Sample { now, answers, took, ahead }: Sample, response_timeout: Duration) {
        if ahead == 0 {
            // It has waited for no other command of ours.
            self.way.on_answer(now, took);
        }
        let count = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
        self.each = took.checked_div(count).unwrap_or_default();
        let way = self.way.shortest();
        let target = way.saturating_add(way).max(part(response_timeout, 4));
        if ahead != 0 && target < took {
            let so_many = target.as_nanos().checked_div(self.each.as_nanos()).unwrap_or(u128::MAX);
            let so_many = usize::try_from(so_many).unwrap_or(usize::MAX).max(MIN);
            self.commands = self.commands.min(so_many);
        } else if took <= target && (self.commands < FIRST || self.commands / 2 <= ahead) {
            // The allowance grows only while it is used. So a node that becomes slower all at once is not far behind before
            // that is seen.
            self.commands = self.commands.saturating_add(answers);
        }
    }
}

/// How long a caller waits before it begins a round, for a node that has `excess` commands more than are allowed, answers
/// one in `each`, and gave its last answer `since` ago. After that the caller looks again.
///
/// A node that answers nothing delays nobody: it hangs, and will soon be called stalled.
pub(crate) fn pause(excess: usize, each: Duration, since: Duration, response_timeout: Duration) -> Duration {
    if part(response_timeout, 4) < since {
        return Duration::ZERO;
    }
    let excess = u32::try_from(excess).unwrap_or(u32::MAX);
    each.saturating_mul(excess).clamp(PAUSE_MIN, PAUSE_MAX)
}

/// Spreads the pauses of many callers, so that they do not all look again at the same time. `random`: 0.0 to 1.0.
pub(crate) fn spread(pause: Duration, random: f64) -> Duration {
    part(pause, 2).saturating_add(share(pause, random))
}

/// How long the way to a node and back takes, together with the time that the node needs for one command.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// When this window began, and the shortest time in it.
    window: Option<(Tick, Duration)>,
    /// The shortest time in the window before.
    before: Option<Duration>,
}

impl Way {
    fn on_answer(&mut self, now: Tick, took: Duration) {
        self.window = match self.window {
            Some((began, shortest)) if now.saturating_duration_since(began) < WINDOW => {
                Some((began, shortest.min(took)))
            }
            old => {
                self.before = old.map(|(_, shortest)| shortest);
                Some((now, took))
            }
        };
    }

    /// Zero if nothing is known.
    fn shortest(&self) -> Duration {
        let this = self.window.map(|(_, shortest)| shortest);
        this.into_iter().chain(self.before).min().unwrap_or_default()
    }
}

fn part(of: Duration, parts: u32) -> Duration {
    of.checked_div(parts).unwrap_or(of)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::arithmetic_side_effects, reason = "a test may overflow: it fails then")]

    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    const TIMEOUT: Duration = ms(100);

    fn sample(after: Duration, answers: usize, took: Duration, ahead: usize) -> Sample {
        static START: std::sync::OnceLock<Tick> = std::sync::OnceLock::new();
        let now = *START.get_or_init(crate::time::tick) + after;
        Sample { now, answers, took, ahead }
    }

    /// A node that answers so many commands a second, `millis` away, and callers who would always give it another one.
    /// How long the slowest of `answers` commands took, and what is allowed in the end.
    fn slowest(allowance: &mut Allowance, per_second: u64, millis: u64, answers: usize) -> Duration {
        let (each, mut now, mut slowest) = (Duration::from_secs(1) / u32::try_from(per_second).unwrap(), ms(0), ms(0));
        // When each was given, how many were under way, and when it is done.
        let mut owed = std::collections::VecDeque::new();
        let mut done_at = Duration::ZERO;
        for _ in 0..answers {
            while owed.len() <= allowance.commands() {
                done_at = done_at.max(now + ms(millis) / 2) + each;
                owed.push_back((now, owed.len(), done_at + ms(millis) / 2));
            }
            let (given, ahead, read) = owed.pop_front().unwrap();
            now = now.max(read);
            slowest = slowest.max(now - given);
            allowance.on_answers(sample(now, 1, now - given, ahead), TIMEOUT);
        }
        slowest
    }

    #[test]
    fn h6_callers_wait_for_a_node_that_falls_behind() {
        assert_eq!(pause(7, ms(1), ms(1), TIMEOUT), ms(7));
        assert_eq!(pause(7, Duration::ZERO, ms(1), TIMEOUT), PAUSE_MIN);
        assert_eq!(pause(usize::MAX, ms(1), ms(1), TIMEOUT), PAUSE_MAX);
        assert_eq!([0.0, 0.5, 1.0].map(|it| spread(ms(8), it)), [ms(4), ms(8), ms(12)]);
    }

    #[test]
    fn h6_a_node_that_hangs_holds_nobody_up() {
        assert_eq!(pause(1_000, ms(1), ms(25), TIMEOUT), PAUSE_MAX);
        assert_eq!(pause(1_000, ms(1), ms(26), TIMEOUT), Duration::ZERO);
    }

    #[test]
    fn h6_a_node_that_answers_all_the_time_is_never_late_however_slow_it_is() {
        for per_second in [400, 1_500, 5_000, 100_000] {
            let mut allowance = Allowance::default();
            // The first come while nothing is known.
            slowest(&mut allowance, per_second, 0, 500);
            let slowest = slowest(&mut allowance, per_second, 0, 5_000);
            assert!(slowest < TIMEOUT * 3 / 4, "{per_second}: {slowest:?}");
        }
    }

    #[test]
    fn h6_a_node_that_becomes_slower_all_at_once_is_in_time_if_it_was_not_full() {
        let mut allowance = Allowance::default();
        // One caller.
        (0..100_000).for_each(|i| allowance.on_answers(sample(ms(i), 1, ms(1), 0), TIMEOUT));
        assert_eq!(allowance.commands(), FIRST);
        assert!(slowest(&mut allowance, 1_500, 0, 1_000) < TIMEOUT);
    }

    #[test]
    fn a_node_that_keeps_up_is_given_all_that_callers_have() {
        let mut allowance = Allowance::default();
        slowest(&mut allowance, 100_000, 1, 10_000);
        assert!(1_000 < allowance.commands(), "{allowance:?}");
    }

    #[test]
    fn a_node_that_is_far_away_holds_nobody_up() {
        let mut allowance = Allowance::default();
        allowance.on_answers(sample(ms(0), 1, ms(80), 0), TIMEOUT);
        slowest(&mut allowance, 20_000, 80, 20_000);
        // What fits onto the way.
        assert!(1_600 <= allowance.commands(), "{allowance:?}");
    }

    #[test]
    fn an_answer_in_time_raises_the_allowance_and_one_that_is_late_cuts_it_to_what_fits() {
        let after = |took| {
            let mut allowance = Allowance::default();
            allowance.on_answers(sample(ms(0), 1, took, 99), TIMEOUT);
            (allowance.commands(), allowance.each())
        };
        assert_eq!(after(ms(25)), (FIRST + 1, ms(25) / 100));
        assert_eq!(after(ms(50)), (50, ms(50) / 100));
    }

    #[test]
    fn one_answer_that_is_late_costs_nothing_for_long() {
        let mut allowance = Allowance::default();
        allowance.on_answers(sample(ms(0), 1, ms(60), 3), TIMEOUT);
        assert_eq!(allowance.commands(), MIN);
        (0..200).for_each(|i| allowance.on_answers(sample(ms(i), 1, ms(1), 3), TIMEOUT));
        assert_eq!(allowance.commands(), FIRST);
    }

    #[test]
    fn batches_are_large_where_the_way_is_short_and_many_where_it_is_long() {
        let after = |took: &[Duration]| {
            let mut allowance = Allowance::default();
            (0..).zip(took).for_each(|(i, took)| allowance.on_answers(sample(ms(i * 40_000), 1, *took, 0), TIMEOUT));
            allowance.batches()
        };
        assert_eq!((after(&[]), after(&[SHORT_WAY])), (BATCHES, BATCHES));
        assert_eq!((after(&[ms(1)]), after(&[ms(5)])), (4, 20), "one each quarter of a millisecond");
        assert_eq!(after(&[SHORT_WAY - Duration::from_nanos(1)]), 1);
        assert_eq!(after(&[ms(1), SHORT_WAY / 2]), 1);
        assert_eq!(after(&[SHORT_WAY / 2, ms(1), ms(1)]), 4, "it has become longer");
    }

    #[test]
    fn our_own_queue_is_not_taken_for_the_way() {
        let mut allowance = Allowance::default();
        allowance.on_answers(sample(ms(0), 1, ms(1), 0), TIMEOUT);
        (0..200_000).for_each(|i| allowance.on_answers(sample(ms(i), 1, ms(24), 100), TIMEOUT));
        allowance.on_answers(sample(ms(200_000), 1, ms(50), 99), TIMEOUT);
        assert_eq!(allowance.commands(), 50, "a quarter of the response timeout");
    }

    #[test]
    fn a_way_that_has_become_longer_is_known_after_a_minute() {
        let mut allowance = Allowance::default();
        let mut at = |seconds: u64, took: u64| {
            allowance.on_answers(sample(ms(seconds * 1_000), 1, ms(took), 0), TIMEOUT);
            allowance.way.shortest()
        };
        assert_eq!(at(0, 1), ms(1));
        assert_eq!(at(20, 81), ms(1));
        assert_eq!(at(31, 81), ms(1));
        assert_eq!(at(62, 81), ms(81));
        assert_eq!(at(92, 90), ms(81), "the window before");
        assert_eq!(at(122, 90), ms(90));
    }
}
