//! How many rounds may be under way at once, learned from how long their answers take.

use std::time::Duration;

use crate::logic::way::{Way, part};
use crate::time::Tick;

/// Enough for all that a machine ordinarily does at once: as long as nothing was slow, fewer calls than this never wait for
/// their turn.
const FIRST: usize = 128;
/// Slow answers never cut the limit below this. They may be slow for other reasons than our load, and fewer rounds would
/// not make them faster then.
const SLOW_MIN: usize = 32;
/// Rounds that time out never cut it below this.
const TIMED_OUT_MIN: usize = 4;
/// More than the threads that a process can have.
const MAX: usize = 1 << 20;
/// How many good rounds raise the limit by one; fewer where the limit is lower than this. So the limit doubles with a few
/// times as many rounds.
const GOOD_FOR_ONE: usize = 8;

/// One round that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// When it began.
    pub(crate) asked: Tick,
    /// How long it took until it was decided.
    pub(crate) took: Duration,
    /// A majority has answered. Otherwise the round has timed out.
    pub(crate) answered: bool,
    /// How many rounds were under way when it ended.
    pub(crate) under_way: usize,
    /// Whether others wait for their turn.
    pub(crate) is_short: bool,
}

/// How many rounds may be under way at once.
///
/// The limit grows in small steps, while rounds are answered well within the response timeout and others wait for their
/// turn. It is cut at once when answers come late. Rounds that were under way at a cut say nothing about the new limit, so
/// they cause no other cut.
#[derive(Debug)]
pub(crate) struct Limit {
    rounds: usize,
    timeout: Duration,
    way: Way,
    good: usize,
    cut_at: Option<Tick>,
}

impl Limit {
    pub(crate) fn new(response_timeout: Duration) -> Limit {
        Limit {
            rounds: FIRST,
            timeout: response_timeout,
            way: Way::default(),
            good: 0,
            cut_at: None,
        }
    }

    pub(crate) fn rounds(&self) -> usize {
        self.rounds
    }

    /// What the fastest of the last rounds took: the way, without a queue of ours. At most half of the response timeout.
    ///
    /// Not told apart: while an overload lasts for longer than the way is remembered, the fastest round has queued as well. That
    /// lets the queue take up to three quarters of the response timeout, and no more.
    pub(crate) fn fastest(&self) -> Duration {
        let half = part(self.timeout, 2);
        self.way.shortest().map_or(half, |it| it.min(half))
    }

    /// Whether a round that took so long has had to queue for longer than is good.
    ///
    /// A queue may take half of the time that the fastest answer leaves: then a server that becomes a little slower, or is
    /// slow for a moment, is still in time.
    pub(crate) fn is_slow(response_timeout: Duration, fastest: Duration, took: Duration) -> bool {
        fastest.saturating_add(part(response_timeout.saturating_sub(fastest), 2)) < took
    }

    /// Whether there is room for more.
    fn is_good(&self, took: Duration) -> bool {
        let fastest = self.fastest();
        took < fastest.saturating_add(part(self.timeout.saturating_sub(fastest), 4))
    }

    /// Learns from a round.
    pub(crate) fn on_round(&mut self, sample: Sample) {
        let Sample {
            asked,
            took,
            answered,
            under_way,
            is_short,
        } = sample;
        let is_old = self.cut_at.is_some_and(|it| asked < it);
        if answered {
            self.way
                .on_answer(asked.checked_add(took).unwrap_or(asked), took);
        }
        if !answered || Limit::is_slow(self.timeout, self.fastest(), took) {
            if is_old {
                return;
            }
            // What was allowed and not used did not make it slow.
            let used = self.rounds.min(under_way);
            let (left, min) = if answered {
                (used.saturating_mul(3) / 4, SLOW_MIN)
            } else {
                (used / 4, TIMED_OUT_MIN)
            };
            self.rounds = left.max(min).min(self.rounds);
            self.good = 0;
            self.cut_at = asked.checked_add(took);
            return;
        }
        if is_short && !is_old && self.is_good(took) {
            self.good = self.good.saturating_add(1);
            if GOOD_FOR_ONE.min(self.rounds) <= self.good {
                self.good = 0;
                self.rounds = self.rounds.saturating_add(1).min(MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::arithmetic_side_effects,
        reason = "a test may overflow: it fails then"
    )]

    use proptest::prelude::*;

    use super::*;
    use crate::time;

    const TIMEOUT: Duration = Duration::from_millis(100);

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A round that began at `asked`, while everything that is allowed is under way and others wait.
    fn sample(limit: &Limit, asked: Tick, took: Duration) -> Sample {
        Sample {
            asked,
            took,
            answered: took < TIMEOUT,
            under_way: limit.rounds(),
            is_short: true,
        }
    }

    /// Rounds that begin at `at`, one after the other as long as there are fewer than allowed.
    fn repeat(limit: &mut Limit, at: Tick, took: Duration, times: usize) {
        (0..times).for_each(|_| limit.on_round(sample(limit, at, took)));
    }

    /// A server that takes `service` for each round, and the way there and back, with as many rounds queued as are
    /// allowed, for so many times as it takes to answer them.
    fn saturate(
        limit: &mut Limit,
        now: &mut Tick,
        service: Duration,
        way: Duration,
        times: usize,
    ) -> bool {
        let mut in_time = true;
        for _ in 0..times {
            let rounds = limit.rounds();
            let took = way + service * u32::try_from(rounds).unwrap();
            in_time = took < TIMEOUT;
            repeat(limit, *now, took.min(TIMEOUT), rounds);
            *now += took.min(TIMEOUT);
        }
        in_time
    }

    #[test]
    fn h5_what_was_under_way_when_the_limit_was_cut_cuts_it_no_further() {
        let (mut limit, start) = (Limit::new(TIMEOUT), time::tick());

        repeat(&mut limit, start, TIMEOUT, FIRST);
        assert_eq!(limit.rounds(), FIRST / 4);
        repeat(&mut limit, start + ms(99), TIMEOUT, FIRST);
        assert_eq!(limit.rounds(), FIRST / 4);
        repeat(&mut limit, start + ms(99), ms(1), FIRST);
        assert_eq!(limit.rounds(), FIRST / 4, "nor does it raise it");

        repeat(&mut limit, start + TIMEOUT, TIMEOUT, 1);
        assert_eq!(limit.rounds(), FIRST / 16);
    }

    #[test]
    fn h5_a_few_rounds_may_always_be_under_way_and_more_of_them_while_answers_come_at_all() {
        let (mut limit, mut now) = (Limit::new(TIMEOUT), time::tick());
        for _ in 0..20 {
            now += ms(200);
            repeat(&mut limit, now, ms(90), 1);
        }
        assert_eq!(limit.rounds(), SLOW_MIN);
        for _ in 0..20 {
            now += ms(200);
            repeat(&mut limit, now, TIMEOUT, 1);
        }
        assert_eq!(limit.rounds(), TIMED_OUT_MIN);
    }

    #[test]
    fn h5_slow_answers_cut_what_is_used_and_fast_ones_raise_what_is_short() {
        let (mut limit, start) = (Limit::new(TIMEOUT), time::tick());
        let plenty = Sample {
            is_short: false,
            ..sample(&limit, start, ms(1))
        };
        (0..10 * FIRST).for_each(|_| limit.on_round(plenty));
        assert_eq!(limit.rounds(), FIRST, "nobody needs more");

        let mut slow = Limit::new(TIMEOUT);
        slow.on_round(sample(&slow, start, ms(80)));
        assert_eq!(slow.rounds(), FIRST * 3 / 4);

        limit.on_round(Sample {
            under_way: 40,
            ..sample(&limit, start, ms(80))
        });
        assert_eq!(limit.rounds(), SLOW_MIN, "three quarters of 40 are fewer");

        repeat(&mut limit, start + ms(80), ms(1), SLOW_MIN * GOOD_FOR_ONE);
        assert_eq!(limit.rounds(), 2 * SLOW_MIN);
        repeat(&mut limit, start + ms(80), ms(30), SLOW_MIN * GOOD_FOR_ONE);
        assert_eq!(limit.rounds(), 2 * SLOW_MIN, "neither fast nor slow");
    }

    #[test]
    fn h5_a_queue_may_take_half_of_what_the_fastest_round_leaves_and_grows_in_the_first_quarter() {
        let (mut limit, start) = (Limit::new(TIMEOUT), time::tick());
        assert!(
            !Limit::is_slow(TIMEOUT, ms(20), ms(60)) && Limit::is_slow(TIMEOUT, ms(20), ms(61))
        );
        limit.on_round(sample(&limit, start, ms(20)));
        assert_eq!(limit.fastest(), ms(20));
        assert!(limit.is_good(ms(39)) && !limit.is_good(ms(40)));
        limit.on_round(sample(&limit, start, ms(30)));
        assert_eq!(limit.fastest(), ms(20));
    }

    /// A blip has cut it to the least, and since then every answer takes 30 ms more.
    #[test]
    fn h20_a_way_that_has_become_longer_binds_nobody_after_a_minute() {
        let (mut limit, start) = (Limit::new(TIMEOUT), time::tick());
        repeat(&mut limit, start, ms(1), 1);
        (1..4).for_each(|i| repeat(&mut limit, start + TIMEOUT * i, TIMEOUT, 1));
        assert_eq!(limit.rounds(), TIMED_OUT_MIN);

        for i in 0..600 {
            let under_way = limit.rounds();
            repeat(
                &mut limit,
                start + ms(1_000) + ms(100) * i,
                ms(31),
                under_way,
            );
        }

        assert!(FIRST < limit.rounds(), "{limit:?}");
    }

    #[test]
    fn h5_a_long_way_is_no_queue() {
        let (mut limit, mut now) = (Limit::new(TIMEOUT), time::tick());
        for _ in 0..100 {
            repeat(&mut limit, now, ms(60), FIRST);
            now += ms(60);
        }
        assert!(FIRST < limit.rounds(), "{limit:?}");
    }

    proptest! {
        /// Within a second of time-outs no round is late any more, the server is busy all the time, and when it becomes
        /// faster or slower the limit follows.
        #[test]
        fn h5_the_limit_finds_what_the_nodes_answer_in_time(
            services in prop::collection::vec(10_u64..5_000, 1..5), way in 0_u64..20_000,
        ) {
            let (mut limit, mut now) = (Limit::new(TIMEOUT), time::tick());
            let way = Duration::from_micros(way);
            for service in services.into_iter().map(Duration::from_micros) {
                saturate(&mut limit, &mut now, service, way, 10);
                // It may be past its best just now, but never for long.
                let in_time = (0..100).filter(|_| saturate(&mut limit, &mut now, service, way, 1)).count();
                prop_assert!(in_time == 100, "{in_time} of 100 times in time at {service:?}: {limit:?}");
                let busy = service * u32::try_from(limit.rounds()).unwrap();
                prop_assert!(way <= busy || ms(20) <= busy, "busy for {busy:?}: {limit:?}");
            }
        }

        #[test]
        fn h5_whatever_comes_some_rounds_may_begin(
            samples in prop::collection::vec((0_u64..1000, 0_u64..300, any::<[bool; 2]>(), 0_usize..2000), 0..200),
        ) {
            let (mut limit, start) = (Limit::new(TIMEOUT), time::tick());
            for (asked, took, [answered, is_short], under_way) in samples {
                limit.on_round(Sample { asked: start + ms(asked), took: ms(took), answered, under_way, is_short });
                prop_assert!((TIMED_OUT_MIN..=MAX).contains(&limit.rounds()));
            }
        }
    }
}
