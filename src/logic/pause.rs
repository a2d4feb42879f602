//! Pauses of a refused caller.

use std::time::Duration;

use crate::error::RoundLoss;
use crate::logic::ballot::quorum;
use crate::logic::lease::FIRST_LIFE;
use crate::time::Tick;

/// Factor of the pauses of a caller with notices of releases.
const LONGER: u32 = 5;
/// Shortest wait for other nodes after a first announcement.
const GRACE_MIN: Duration = Duration::from_millis(2);

/// Earliest time at which a majority can be free without a release. `nodes`: the same per node,
/// from its answer. `None` if unknown.
pub(crate) fn free_in(nodes: &[Option<Duration>]) -> Option<Duration> {
    let mut times: Vec<_> = nodes.iter().flatten().collect();
    times.sort_unstable();
    let last = quorum(nodes.len()).checked_sub(1)?;
    times.get(last).map(|time| **time)
}

/// The pause before try number `tries` + 1, for `random` from 0 to 1.
///
/// It lies between `min` and a limit that doubles with every try, up to `max`. It is random, so
/// that contenders that split the nodes do not collide again, and it grows, so that many of them do
/// not overload the nodes. With `free_in`, the expiry of the keys, it ends at most `min` later.
///
/// `is_notified`: the caller gets notices of releases and retries only for a lost one. Then the
/// pause lies between `max` and five times that, and a quarter up or down.
pub(crate) fn pause(
    is_notified: bool,
    tries: u32,
    min: Duration,
    max: Duration,
    free_in: Option<Duration>,
    random: f64,
) -> Duration {
    let doubled = 2_u32.saturating_pow(tries.min(31));
    let pause = if is_notified {
        let limit = max.saturating_mul(doubled.min(LONGER));
        share(limit, 0.75).saturating_add(share(share(limit, 0.5), random))
    } else {
        let limit = min.saturating_mul(doubled).min(max).max(min);
        min.saturating_add(share(limit.saturating_sub(min), random))
    };
    match free_in {
        // After a split vote only the pauses of the others matter.
        None | Some(Duration::ZERO) => pause,
        Some(free_in) => pause.min(free_in.saturating_add(share(min, random))),
    }
}

/// The pause of a caller in waiting lists without notices of hand-overs: short enough to find a
/// handed-over lock before it ends.
pub(crate) fn in_a_list(pause: Duration) -> Duration {
    pause.min(share(FIRST_LIFE, 0.5))
}

/// The longest pause: a caller silent for several of them is gone.
pub(crate) fn longest_pause(max: Duration) -> Duration {
    let limit = max.saturating_mul(LONGER);
    limit.saturating_add(share(limit, 0.25))
}

/// Wait for the other nodes after a first announcement. They are as far apart as the answers of the
/// last round, which took `took`; and twice that after each [false alarm](false_alarms).
pub(crate) fn grace(took: Duration, false_alarms: u32) -> Duration {
    took.max(GRACE_MIN)
        .saturating_mul(2_u32.saturating_pow(false_alarms))
}

/// The false alarms of a call, after `before` ones and a lost round announced by `announced` nodes.
/// Fewer than a `majority` may announce releases without end that never happened: one faulty
/// server, or a publisher there.
pub(crate) fn false_alarms(before: u32, announced: usize, majority: usize) -> u32 {
    match announced {
        0 => before,
        _ if announced < majority => before.saturating_add(1),
        _ => 0,
    }
}

/// Time of the next try of a caller, planned for `planned`; `None`: at once. A `majority` of
/// announcing nodes is enough, and fewer are enough at `in_time`.
pub(crate) fn next_try(
    planned: Tick,
    majority: usize,
    announced: usize,
    in_time: Option<Tick>,
) -> Option<Tick> {
    if majority <= announced {
        return None;
    }
    Some(in_time.map_or(planned, |it| it.min(planned)))
}

/// Whether a call keeps its place before later ones after a round lost for this reason.
///
/// Every node has its own list. Calls that reach one node each, and no majority, cannot win, and
/// would be first in every list: together they would keep a free lock from others.
pub(crate) fn keeps_its_place(why: RoundLoss) -> bool {
    match why {
        RoundLoss::Held | RoundLoss::Overtaken | RoundLoss::KeyInUse => true,
        RoundLoss::NoQuorum | RoundLoss::TooLate => false,
    }
}

fn share(of: Duration, random: f64) -> Duration {
    let random = if random.is_finite() {
        random.clamp(0.0, 1.0)
    } else {
        0.5
    };
    of.mul_f64(random)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_majority_is_free_when_its_last_needed_key_expires() {
        assert_eq!(
            free_in(&[Some(ms(30)), Some(ms(10)), Some(ms(20))]),
            Some(ms(20))
        );
        assert_eq!(
            free_in(&[Some(Duration::ZERO), Some(ms(10)), Some(ms(20))]),
            Some(ms(10))
        );
        assert_eq!(free_in(&[Some(ms(10)), None, Some(ms(20))]), Some(ms(20)));
    }

    #[test]
    fn a_key_without_expiry_is_never_taken_for_free() {
        assert_eq!(free_in(&[None, None, Some(ms(1))]), None);
        assert_eq!(free_in(&[]), None);
    }

    #[test]
    fn a11_pauses_are_random_bounded_and_grow() {
        let min = ms(10);
        let max = ms(200);
        assert_eq!(pause(false, 0, min, max, None, 1.0), ms(10));
        assert_eq!(pause(false, 1, min, max, None, 1.0), ms(20));
        assert_eq!(pause(false, 2, min, max, None, 1.0), ms(40));
        for tries in 0..100 {
            assert_eq!(pause(false, tries, min, max, None, 0.0), min);
            let longest = pause(false, tries, min, max, None, 1.0);
            assert!(min <= longest && longest <= max);
        }
        assert_eq!(pause(false, u32::MAX, min, max, None, 1.0), max);
    }

    #[test]
    fn h3_a_call_without_messages_asks_twice_within_a_hand_over() {
        assert_eq!(
            in_a_list(pause(false, 9, ms(10), ms(200), None, 1.0)),
            ms(200)
        );
        for tries in [0, 9, u32::MAX] {
            let longest = in_a_list(pause(false, tries, ms(60_000), ms(60_000), None, 1.0));
            assert!(longest <= FIRST_LIFE.checked_div(2).unwrap());
        }
        let script = include_str!("../wire/scripts/handover.lua");
        let keeps_out = format!("local POLLS = {}\n", FIRST_LIFE.as_millis());
        assert!(script.contains(&keeps_out), "a reader comes in between");
    }

    #[test]
    fn h4_a_call_that_cannot_win_keeps_no_place() {
        for why in [RoundLoss::NoQuorum, RoundLoss::TooLate] {
            assert!(!keeps_its_place(why), "{why:?}");
        }
        for why in [RoundLoss::Held, RoundLoss::Overtaken] {
            assert!(keeps_its_place(why), "{why:?}");
        }
    }

    #[test]
    fn a_pause_ends_when_the_keys_can_have_expired() {
        assert_eq!(pause(false, 9, ms(10), ms(200), Some(ms(50)), 0.5), ms(55));
        assert_eq!(
            pause(false, 9, ms(10), ms(200), Some(ms(900)), 1.0),
            ms(200)
        );
    }

    #[test]
    fn a_call_with_messages_polls_rarely_and_within_the_longest_pause() {
        let min = ms(10);
        let max = ms(200);
        assert_eq!(pause(true, 0, min, max, None, 0.0), ms(150));
        assert_eq!(pause(true, 0, min, max, None, 1.0), ms(250));
        assert_eq!(pause(true, 1, min, max, None, 0.5), ms(400));
        for tries in [2, 3, 100, u32::MAX] {
            let pauses = [0.0, 1.0].map(|random| pause(true, tries, min, max, None, random));
            assert!(
                ms(600) <= pauses[0] && pauses[1] <= longest_pause(max),
                "{tries}: {pauses:?}"
            );
        }
        assert_eq!(pause(true, 9, min, max, Some(ms(50)), 0.5), ms(55));
        assert_eq!(
            pause(true, 9, min, max, Some(Duration::ZERO), 0.5),
            ms(1000)
        );
        assert_eq!(pause(true, 9, min, Duration::MAX, None, 1.0), Duration::MAX);
    }

    #[test]
    fn messages_of_a_majority_cause_an_ask_at_once_and_fewer_later() {
        let planned = crate::time::tick();
        let soon = planned.checked_sub(ms(1)).unwrap();
        let late = planned.checked_add(ms(1)).unwrap();
        assert_eq!(next_try(planned, 3, 0, None), Some(planned));
        assert_eq!(next_try(planned, 3, 1, Some(soon)), Some(soon));
        assert_eq!(
            next_try(planned, 3, 2, Some(late)),
            Some(planned),
            "never later than without the notice"
        );
        assert_eq!(next_try(planned, 3, 3, Some(late)), None);
        assert_eq!(next_try(planned, 3, 5, None), None);
    }

    #[test]
    fn the_wait_for_further_messages_lasts_a_round_trip() {
        assert_eq!(grace(ms(0), 0), GRACE_MIN);
        assert_eq!(grace(ms(80), 0), ms(80));
    }

    #[test]
    fn h23_repeated_messages_of_one_node_cause_ever_fewer_asks() {
        assert_eq!(
            [0, 1, 9].map(|it| grace(ms(0), it)),
            [ms(2), ms(4), ms(1_024)]
        );
        assert_eq!(grace(ms(80), 3), ms(640));
        let planned = crate::time::tick();
        let never = planned.checked_add(grace(ms(1), u32::MAX));
        assert_eq!(
            next_try(planned, 2, 1, never),
            Some(planned),
            "never later than without the notice"
        );

        assert_eq!(false_alarms(4, 1, 2), 5);
        assert_eq!(false_alarms(4, 2, 3), 5);
        assert_eq!(false_alarms(u32::MAX, 1, 2), u32::MAX);
        assert_eq!(false_alarms(4, 0, 2), 4, "nobody had announced anything");
        assert_eq!(false_alarms(4, 2, 2), 0, "a majority tells of a release");
    }

    #[test]
    fn a_bad_random_number_still_gives_a_pause() {
        assert_eq!(pause(false, 5, ms(10), ms(20), None, f64::NAN), ms(15));
    }
}
