//! How many commands a node may be behind before callers wait for it, and how many batches are under way to it.
//!
//! A round ends at the majority. So nothing else holds callers back when one node, or the thread that serves it, gets less
//! done than they ask for: its queue would grow until every round has to do without that node.

use std::time::Duration;

use crate::logic::way::{Way, part};
use crate::time::Tick;

/// So many commands may always be under way: as many as rounds, see `admission`. A node that needs longer than the response
/// timeout for them is stalled at times, and asked again once it has caught up.
const COMMANDS: usize = 128;

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

/// How many commands of ours may be under way to one node: [`COMMANDS`], and more where the node answers more of them within a
/// quarter of the response timeout.
///
/// Answers come in the order of commands. So how long a command took, and how many others were before it, shows at once how
/// fast the node answers.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    commands: usize,
    way: Way,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { commands: COMMANDS, way: Way::default() }
    }
}

impl Allowance {
    pub(crate) fn commands(&self) -> usize {
        self.commands
    }

    /// How many batches of commands may be under way before further commands wait, to be written together when an answer
    /// comes: every batch costs a wake-up here and one at the server, and a command waits for as long as one is on its way.
    pub(crate) fn batches(&self) -> usize {
        let Some(way) = self.way.shortest() else { return BATCHES };
        let so_many = way.as_nanos().checked_div(SHORT_WAY.as_nanos()).unwrap_or_default();
        let so_many = usize::try_from(so_many).unwrap_or(usize::MAX);
        if so_many == 0 { 1 } else { so_many.max(BATCHES) }
    }

    pub(crate) fn on_answers(&mut self, Sample { now, answers, took, ahead }: Sample, response_timeout: Duration) {
        if ahead == 0 {
            // It has waited for no other command of ours.
            self.way.on_answer(now, took);
        }
        let way = self.way.shortest().unwrap_or_default();
        let target = way.saturating_add(way).max(part(response_timeout, 4));
        if took <= target {
            // The allowance grows only while it is used. So a node that becomes slower all at once is not far behind before
            // that is seen.
            if self.commands / 2 <= ahead {
                self.commands = self.commands.saturating_add(answers);
            }
        } else if COMMANDS < self.commands {
            let count = u128::try_from(ahead).unwrap_or(u128::MAX).saturating_add(1);
            let fits = target.as_nanos().saturating_mul(count).checked_div(took.as_nanos()).unwrap_or_default();
            let fits = usize::try_from(fits).unwrap_or(usize::MAX);
            self.commands = fits.clamp(COMMANDS, self.commands);
        }
    }
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
    fn h6_a_node_that_answers_some_thousand_commands_a_second_is_never_late() {
        for per_second in [2_000, 5_000, 20_000, 100_000] {
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
        assert_eq!(allowance.commands(), COMMANDS);
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
    fn an_answer_in_time_raises_what_is_used_and_one_that_is_late_cuts_it_to_what_fits() {
        let mut allowance = Allowance::default();
        let mut after = |answers, took, ahead| {
            allowance.on_answers(sample(ms(0), answers, took, ahead), TIMEOUT);
            allowance.commands()
        };
        assert_eq!(after(1, ms(25), COMMANDS / 2 - 1), COMMANDS, "it is not used");
        assert_eq!(after(872, ms(25), COMMANDS / 2), 1_000);
        assert_eq!(after(1, ms(50), 399), 200);
        assert_eq!(after(1, ms(90), 3), COMMANDS, "it is late for other reasons than our load");
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
        (0..200_000).for_each(|i| allowance.on_answers(sample(ms(i), 1, ms(24), 1_000), TIMEOUT));
        assert!(1_000 < allowance.commands());
        allowance.on_answers(sample(ms(200_000), 1, ms(50), 999), TIMEOUT);
        assert_eq!(allowance.commands(), 500, "what is answered in a quarter of the response timeout");
    }
}
