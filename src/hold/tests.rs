#![expect(
    clippy::arithmetic_side_effects,
    reason = "a test may overflow: it fails then"
)]

use super::*;
use crate::answer::LockStatus;
use crate::error::{NodeAnswer, NodeFailure, QuarantineReason};
use crate::time;

const TTL: Duration = Duration::from_secs(30);
const GONE: Answer = Answer::with_counter(LockStatus::Gone, 0);
const YES: Answer = Answer::of(LockStatus::Extended);
const SET: Answer = Answer::of(LockStatus::Healed);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The margin is a nanosecond.
fn rounded(time: Duration) -> Duration {
    Duration::from_micros(u64::try_from((time + Duration::from_nanos(1)).as_micros()).unwrap())
}

fn node(index: u8) -> NodeId {
    NodeId::new(index)
}

fn nodes(some: impl IntoIterator<Item = u8>) -> NodeSet {
    some.into_iter().map(NodeId::new).collect()
}

/// Servers, and a clock that all of it reads.
struct World {
    start: Now,
    past: Duration,
    voting: NodeSet,
    settable: NodeSet,
    stepped: Vec<(NodeId, Tick)>,
}

impl Servers for World {
    fn voting(&self, _: Tick) -> NodeSet {
        self.voting
    }

    fn settable(&self, _: Tick) -> NodeSet {
        self.settable
    }

    fn has_stepped(&self, node: NodeId, since: Tick) -> bool {
        let has_stepped = |it: &(NodeId, Tick)| it.0 == node && since <= it.1;
        self.stepped.iter().any(has_stepped)
    }

    fn time_for_all(&self, now: Moment) -> Option<u64> {
        Some(now.wall_micros())
    }

    fn pause(&self, left: Duration, _: Tick) -> Duration {
        ms(25).min(left)
    }
}

impl World {
    fn new() -> World {
        World {
            start: Now {
                moment: Moment::at(Duration::from_secs(1_000), Duration::from_secs(9_000)),
                tick: time::tick(),
            },
            past: Duration::ZERO,
            voting: nodes(0..3),
            settable: nodes(0..3),
            stepped: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        Now {
            moment: self.start.moment.checked_add(self.past).unwrap(),
            tick: self.start.tick.checked_add(self.past).unwrap(),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.past += time;
    }

    fn step(&mut self, index: u8) {
        self.stepped.push((node(index), self.now().tick));
    }

    fn terms(&self) -> Terms {
        Terms {
            nodes: 3,
            ttl: TTL,
            margin: Margin {
                share: 0.0,
                fixed: Duration::ZERO,
            },
            renewed: true,
            hold_until: None,
            grant: Promise {
                round: 0,
                sent: self.now(),
                until: self.now().moment.checked_add(TTL).unwrap(),
                number: 7,
            },
            response_timeout: ms(50),
        }
    }

    /// A hold that these nodes grant now, for so long.
    fn won(&self, mut terms: Terms, by: &[u8], lasts: Duration) -> Hold {
        let now = self.now();
        terms.grant.until = now.moment.checked_add(lasts).unwrap();
        let mut hold = Hold::new(terms, lasts < TTL, nodes(0..3), now.moment);
        for it in by {
            hold.on_grant(node(*it), &YES, true, false, now.moment);
        }
        hold
    }

    fn hold(&self) -> Hold {
        self.won(self.terms(), &[0, 1, 2], TTL)
    }

    fn extend(&self, hold: &mut Hold, ttl: Duration) -> Extension {
        let ends_at = self.now().tick.checked_add(ms(50)).unwrap();
        let extension = hold.extend(ttl, self.now(), ends_at, self).unwrap();
        hold.on_sent(&extension, extension.to);
        extension
    }

    fn answer(&self, hold: &mut Hold, extension: &Extension, index: u8, answer: &Answer) {
        hold.on_answer(extension, node(index), answer, self.now(), self);
    }

    fn left(&self, hold: &Hold) -> Result<Duration, LostReason> {
        hold.left(self.now().moment).map(rounded)
    }

    fn next_in(&self, hold: &Hold) -> Option<Duration> {
        hold.next_in(self.now(), self).map(rounded)
    }

    fn news(&self, hold: &mut Hold) -> Vec<News> {
        std::mem::take(&mut hold.news)
    }
}

fn quarantined(why: QuarantineReason) -> Answer {
    Answer::Failed(NodeFailure::Quarantined { left: TTL, why })
}

#[test]
fn d1_extensions_by_different_majorities_last_to_the_later_promise() {
    let mut world = World::new();
    let mut hold = world.hold();
    world.pass(ms(10_000));
    let first = world.extend(&mut hold, TTL);
    world.pass(ms(5_000));
    let second = world.extend(&mut hold, TTL);
    world.answer(&mut hold, &first, 0, &YES);
    assert_eq!(
        world.left(&hold),
        Ok(ms(15_000)),
        "one promise of a later end"
    );

    world.answer(&mut hold, &second, 1, &YES);

    assert_eq!(world.left(&hold), Ok(ms(25_000)), "the end of the first");
    world.answer(&mut hold, &second, 0, &YES);
    assert_eq!(world.left(&hold), Ok(ms(30_000)));
}

/// RACE: T1 extends for its holder; T2, the renewal, extends a fixed lease to the same end, which is earlier by the other
/// clock; T1 looks whether its own end is confirmed, with another lag between its readings of the clocks.
#[test]
fn d5_a_promise_earlier_by_one_clock_does_not_replace_a_later_one() {
    let world = World::new();
    let at = |boot, wall| Moment::at(ms(boot), ms(wall));
    let until = |round, until| Promise {
        round,
        sent: world.now(),
        until,
        number: 7,
    };
    let (holders, renewals) = (until(1, at(10, 20)), until(2, at(10, 19)));
    let mut promises = Promises::new(1);
    for promise in [holders, renewals] {
        promises.note(node(0), &YES, Some(promise), 7, at(5, 14), |_| false);
    }
    assert!(promises.confirm(&holders, at(5, 15)));
}

#[test]
fn d1_a_promise_counts_from_before_its_send() {
    let mut world = World::new();
    let mut hold = world.hold();
    let extension = world.extend(&mut hold, TTL);
    world.pass(ms(4_000));

    (0..3).for_each(|it| world.answer(&mut hold, &extension, it, &YES));

    assert_eq!(world.left(&hold), Ok(ms(26_000)));
}

#[test]
fn d5_an_extension_never_shortens() {
    let world = World::new();
    let mut hold = world.hold();
    let extension = world.extend(&mut hold, ms(1_000));

    (0..3).for_each(|it| world.answer(&mut hold, &extension, it, &YES));

    assert_eq!(world.left(&hold), Ok(TTL));
    assert!(
        hold.promises
            .confirm(&extension.promise, world.now().moment)
    );
}

#[test]
fn d4_an_answer_behind_the_end_changes_nothing() {
    let mut world = World::new();
    let mut hold = world.hold();
    world.pass(ms(29_000));
    let extension = world.extend(&mut hold, TTL);
    world.answer(&mut hold, &extension, 0, &YES);
    world.pass(ms(1_000));

    world.answer(&mut hold, &extension, 1, &YES);
    world.answer(&mut hold, &extension, 2, &YES);

    assert_eq!(world.left(&hold), Err(LostReason::Expired));
    assert_eq!(
        world.news(&mut hold),
        [News::Lost(LostReason::Expired)],
        "once"
    );
    assert_eq!(hold.release(world.now().moment), Err(LostReason::Expired));
    assert!(world.news(&mut hold).is_empty(), "announced twice");
}

#[test]
fn e1_no_answer_turns_a_released_lock_into_a_loss() {
    let mut world = World::new();
    let mut hold = world.hold();
    let extension = world.extend(&mut hold, TTL);

    assert_eq!(hold.release(world.now().moment).unwrap().len(), 3);

    (0..3).for_each(|it| world.answer(&mut hold, &extension, it, &GONE));
    world.pass(TTL);
    let _ = hold.end_by_clock(world.now().moment);
    hold.lose(LostReason::ShutDown);
    assert!(world.next_in(&hold).is_none());
    assert!(world.news(&mut hold).is_empty() && !hold.is_lost() && !hold.is_held());
    assert_eq!(world.left(&hold), Err(LostReason::Gone));
}

#[test]
fn d3_half_of_the_nodes_is_enough_to_lose_a_lock_but_not_to_keep_it() {
    let mut world = World::new();
    let terms = Terms {
        nodes: 4,
        ..world.terms()
    };
    let mut hold = world.won(terms, &[0, 1, 2, 3], TTL);
    world.pass(ms(10_000));
    let extension = world.extend(&mut hold, TTL);
    world.answer(&mut hold, &extension, 0, &YES);
    world.answer(&mut hold, &extension, 1, &YES);
    world.answer(&mut hold, &extension, 2, &GONE);
    assert_eq!(world.left(&hold), Ok(ms(20_000)));

    world.answer(&mut hold, &extension, 3, &GONE);

    assert_eq!(world.left(&hold), Err(LostReason::Gone));
}

#[test]
fn a_key_missing_at_two_extensions_counts_once() {
    let mut world = World::new();
    let mut hold = world.hold();
    for _ in 0..2 {
        world.pass(ms(1_000));
        let extension = world.extend(&mut hold, TTL);
        world.answer(&mut hold, &extension, 0, &GONE);
        world.answer(&mut hold, &extension, 1, &YES);
    }
    assert!(hold.is_held());
    let extension = world.extend(&mut hold, TTL);
    world.answer(&mut hold, &extension, 0, &GONE);
    world.answer(&mut hold, &extension, 1, &GONE);
    assert_eq!(world.left(&hold), Err(LostReason::Gone));
}

#[test]
fn d8_a_second_emptied_server_costs_no_lock_while_the_first_is_quarantined() {
    let mut world = World::new();
    let mut hold = world.hold();
    let new = quarantined(QuarantineReason::New);
    for (emptied, others) in [(0, [1, 2]), (1, [0, 2])] {
        world.pass(ms(10_000));
        let extension = world.extend(&mut hold, TTL);
        world.answer(&mut hold, &extension, emptied, &new);
        others
            .iter()
            .for_each(|it| world.answer(&mut hold, &extension, *it, &YES));
    }
    assert_eq!(world.left(&hold), Ok(TTL));
    assert!(hold.promises.gone().is_empty());
}

#[test]
fn g8_removed_keys_of_a_majority_are_a_loss_although_the_extension_sets_them() {
    for answer in [SET, quarantined(QuarantineReason::ClockStep)] {
        let world = World::new();
        let mut hold = world.hold();
        let extension = world.extend(&mut hold, TTL);
        world.answer(&mut hold, &extension, 2, &YES);
        world.answer(&mut hold, &extension, 0, &answer);
        assert!(hold.is_held(), "one is spare");

        world.answer(&mut hold, &extension, 1, &answer);

        assert_eq!(world.left(&hold), Err(LostReason::Gone));
    }
}

/// RACE: T1, a node, grants the lock, and its answer is under way; T2 removes the keys; T3 sends an extension, behind
/// which the grant does not count.
#[test]
fn d6_a_loss_leaves_no_key_that_its_extension_has_set_without_a_promise() {
    let world = World::new();
    let mut hold = world.won(world.terms(), &[1, 2], TTL);
    let extension = world.extend(&mut hold, TTL);
    for index in 0..3 {
        world.answer(&mut hold, &extension, index, &SET);
    }
    assert_eq!(world.left(&hold), Err(LostReason::Gone));
    assert_eq!(hold.left_behind(), nodes(0..3));
}

#[test]
fn a_set_key_stays_if_an_extension_behind_the_next_one_finds_others_gone() {
    let world = World::new();
    let mut hold = world.won(world.terms(), &[0, 1], TTL);
    let first = world.extend(&mut hold, TTL);
    for (index, answer) in [(0, &YES), (1, &YES), (2, &SET)] {
        world.answer(&mut hold, &first, index, answer);
    }
    let second = world.extend(&mut hold, TTL);
    for index in [0, 1, 2] {
        world.answer(&mut hold, &second, index, &YES);
    }
    let third = world.extend(&mut hold, TTL);
    for index in 0..2 {
        world.answer(&mut hold, &third, index, &GONE);
    }
    assert_eq!(world.left(&hold), Err(LostReason::Gone));
    assert_eq!(hold.left_behind(), nodes(0..2));
}

#[test]
fn d7_a_key_that_was_set_counts_at_once_where_none_was_promised() {
    let mut world = World::new();
    let mut hold = world.won(world.terms(), &[0, 1], TTL);
    world.pass(ms(10_000));
    let extension = world.extend(&mut hold, TTL);
    world.answer(&mut hold, &extension, 0, &YES);

    world.answer(&mut hold, &extension, 2, &SET);

    assert_eq!(world.left(&hold), Ok(TTL));
    assert!(world.news(&mut hold).contains(&News::Healed(node(2))));
}

#[test]
fn d7_a_larger_counter_is_confirmed_before_the_key_is_set() {
    let world = World::new();
    let mut hold = world.hold();
    let ahead = Answer::with_counter(LockStatus::Gone, 9);
    let mut extension = world.extend(&mut hold, TTL);
    assert_eq!((extension.promise.number, extension.sets), (7, nodes(0..3)));
    for it in 0..2 {
        world.answer(&mut hold, &extension, it, &YES);
    }
    world.answer(&mut hold, &extension, 2, &ahead);
    assert_eq!(world.next_in(&hold), Some(Duration::ZERO));

    extension = hold.on_due(world.now(), &world).unwrap();
    assert_eq!(
        (extension.promise.number, extension.sets),
        (9, NodeSet::default())
    );
    world.answer(&mut hold, &extension, 0, &YES);
    let early = world.extend(&mut hold.clone(), TTL);
    assert!(early.sets.is_empty(), "one node confirmed it");
    world.answer(&mut hold, &extension, 1, &YES);
    world.answer(
        &mut hold,
        &extension,
        2,
        &Answer::with_counter(LockStatus::Gone, 9),
    );

    extension = hold.on_due(world.now(), &world).unwrap();
    assert_eq!((extension.promise.number, extension.sets), (9, nodes(0..3)));
}

#[test]
fn a_key_behind_a_newer_counter_counts_only_where_one_was_promised() {
    let world = World::new();
    let lifted = Answer::with_counter(LockStatus::Lifted, 9);
    for (index, counts) in [(1, true), (2, false)] {
        let mut hold = world.won(world.terms(), &[0, 1], TTL);
        let extension = world.extend(&mut hold, 2 * TTL);
        world.answer(&mut hold, &extension, 0, &YES);
        world.answer(&mut hold, &extension, index, &lifted);
        let is_confirmed = hold
            .promises
            .confirm(&extension.promise, world.now().moment);
        assert_eq!(is_confirmed, counts);
    }
}

#[test]
fn c4_a_step_on_one_of_three_does_no_harm_and_on_two_needs_an_answer() {
    let mut world = World::new();
    let mut hold = world.hold();
    world.pass(ms(1_000));
    world.step(0);
    assert!(hold.on_due(world.now(), &world).is_none());
    world.step(1);
    world.pass(ms(1));
    let check = hold.on_due(world.now(), &world).unwrap();
    assert_eq!(world.left(&hold), Ok(ms(28_999)), "in doubt, not lost");
    world.answer(&mut hold, &check, 2, &YES);
    let confirmed = {
        let mut hold = hold.clone();
        world.answer(&mut hold, &check, 1, &YES);
        world.left(&hold)
    };
    assert_eq!(confirmed, Ok(TTL));

    world.pass(ms(50));
    assert!(hold.on_due(world.now(), &world).is_none());

    assert_eq!(world.left(&hold), Err(LostReason::NodeClock));
}

#[test]
fn c4_a_lock_without_its_doubtful_promises_is_checked_when_the_others_end() {
    let mut world = World::new();
    let terms = Terms {
        renewed: false,
        ..world.terms()
    };
    let mut hold = world.won(terms, &[0, 1, 2], TTL);
    let extension = world.extend(&mut hold, 4 * TTL);
    for it in 0..2 {
        world.answer(&mut hold, &extension, it, &YES);
    }
    world.pass(ms(1_000));
    assert_eq!(world.next_in(&hold), Some(ms(119_000)));

    world.step(0);

    assert_eq!(world.next_in(&hold), Some(ms(29_000)));
    world.pass(ms(29_000));
    assert!(hold.on_due(world.now(), &world).is_some());
}

#[test]
fn c4_an_answer_before_a_step_during_the_check_leaves_the_doubt() {
    let mut world = World::new();
    let mut hold = world.hold();
    world.pass(ms(1_000));
    (0..2).for_each(|it| world.step(it));
    let check = hold.on_due(world.now(), &world).unwrap();
    world.pass(ms(1));
    world.answer(&mut hold, &check, 2, &YES);
    world.step(2);
    world.pass(ms(49));

    assert!(hold.on_due(world.now(), &world).is_none());

    assert!(hold.is_held(), "sent again after a pause");
    world.pass(check_pause());
    assert!(hold.on_due(world.now(), &world).is_some());
}

/// Its servers were too slow for the check.
#[test]
fn c4_a_failed_check_is_repeated_soon_with_and_without_renewal() {
    for renewed in [true, false] {
        let mut world = World::new();
        let terms = Terms {
            renewed,
            ..world.terms()
        };
        let mut hold = world.won(terms, &[0, 1, 2], TTL);
        world.pass(ms(100));
        assert!(hold.on_due(world.now(), &world).is_none());
        world.step(0);
        world.step(1);
        let check = hold.on_due(world.now(), &world).unwrap();
        hold.on_sent(&check, check.to);

        world.pass(ms(50));
        hold.fail_overdue(world.now(), &world);

        assert!(hold.is_held());
        let next = hold.next_in(world.now(), &world);
        assert!(next.is_some_and(|it| it <= ms(25)), "{renewed} {next:?}");
    }
}

fn check_pause() -> Duration {
    lease::check_pause(TTL)
}

#[test]
fn h21_no_renewal_is_sent_while_a_majority_has_not_answered_the_last() {
    let mut world = World::new();
    let mut hold = world.hold();
    world.pass(ms(10_000));
    let renewal = hold.on_due(world.now(), &world).unwrap();
    hold.on_sent(&renewal, nodes(0..3));
    assert!(hold.on_due(world.now(), &world).is_none(), "one at a time");
    world.pass(ms(50));

    for _ in 0..3 {
        assert!(hold.on_due(world.now(), &world).is_none());
        assert_eq!(world.next_in(&hold), Some(ms(25)));
        world.pass(ms(25));
    }

    world.answer(&mut hold, &renewal, 0, &YES);
    assert_eq!(world.next_in(&hold), Some(ms(0)));
    assert!(
        hold.on_due(world.now(), &world).is_none(),
        "two of three owe it"
    );
    world.answer(&mut hold, &renewal, 1, &GONE);
    world.pass(ms(25));
    let retry = hold.on_due(world.now(), &world).unwrap();
    assert_eq!(retry.to, nodes(0..2), "the third owes its answer");
}

#[test]
fn a_late_majority_confirms_an_extension_that_had_failed() {
    let mut world = World::new();
    let mut hold = world.hold();
    world.pass(ms(10_000));
    let renewal = hold.on_due(world.now(), &world).unwrap();
    hold.on_sent(&renewal, nodes(0..3));
    world.pass(ms(50));
    hold.on_due(world.now(), &world);
    hold.renewal = Renewal::FailureLogged;
    assert_eq!(
        world.news(&mut hold),
        [News::NotExtended { left: ms(19_950) }]
    );
    let late = Answer::Failed(NodeFailure::TimedOut);
    assert!(
        hold.promises
            .rows()
            .iter()
            .all(|it| *it == NodeAnswer::from(&late))
    );

    (0..2).for_each(|it| world.answer(&mut hold, &renewal, it, &YES));

    let news = News::Extended {
        took: ms(50),
        left: ms(19_950),
        again: true,
    };
    assert_eq!(world.news(&mut hold), [news]);
    assert_eq!(world.next_in(&hold), Some(ms(9_950)));
}

#[test]
fn an_extension_by_the_holder_beside_a_renewal_gets_its_full_lease() {
    let mut world = World::new();
    let mut hold = world.hold();
    world.pass(ms(10_000));
    let renewal = hold.on_due(world.now(), &world).unwrap();
    hold.on_sent(&renewal, nodes(0..3));
    let longer = world.extend(&mut hold, 2 * TTL);

    (0..3).for_each(|it| world.answer(&mut hold, &renewal, it, &YES));
    assert!(!hold.promises.confirm(&longer.promise, world.now().moment));
    (0..2).for_each(|it| world.answer(&mut hold, &longer, it, &YES));

    assert!(hold.promises.confirm(&longer.promise, world.now().moment));
    assert_eq!(world.left(&hold), Ok(2 * TTL));
    let extended = |it: &&News| matches!(it, News::Extended { .. });
    assert_eq!(world.news(&mut hold).iter().filter(extended).count(), 2);
}

#[test]
fn d10_a_lock_ends_at_its_maximum_hold() {
    let mut world = World::new();
    let hold_until = world.now().moment.checked_add(ms(45_000));
    let terms = Terms {
        hold_until,
        ..world.terms()
    };
    let mut hold = world.won(terms, &[0, 1, 2], TTL);
    world.pass(ms(20_000));
    let extension = hold.on_due(world.now(), &world).unwrap();
    (0..3).for_each(|it| world.answer(&mut hold, &extension, it, &YES));
    assert_eq!(world.left(&hold), Ok(ms(25_000)));
    world.pass(ms(25_000));

    assert!(hold.on_due(world.now(), &world).is_none());

    assert_eq!(world.left(&hold), Err(LostReason::MaxHold));
}

#[test]
fn a_fixed_lease_waits_for_its_end_only() {
    let mut world = World::new();
    let terms = Terms {
        renewed: false,
        ..world.terms()
    };
    let mut hold = world.won(terms, &[0, 1, 2], TTL);
    world.pass(ms(20_000));
    assert!(hold.on_due(world.now(), &world).is_none());
    assert_eq!(world.next_in(&hold), Some(ms(10_000)));
    world.pass(ms(10_000));
    assert_eq!(world.left(&hold), Err(LostReason::LeaseOver));
}

/// Also where nobody renews it: its keys have the life of a lock that was handed over.
#[test]
fn a_lock_that_was_handed_over_is_extended_after_fifty_milliseconds() {
    for renewed in [true, false] {
        let mut world = World::new();
        let terms = Terms {
            renewed,
            ..world.terms()
        };
        let mut hold = world.won(terms, &[0, 1, 2], lease::FIRST_LIFE);
        world.pass(lease::FIRST_EXTENSION / 2);
        assert!(hold.on_due(world.now(), &world).is_none());
        let wait = world.next_in(&hold);
        assert_eq!(wait, Some(lease::FIRST_EXTENSION / 2));
        world.pass(lease::FIRST_EXTENSION / 2);

        let extension = hold.on_due(world.now(), &world).unwrap();

        let rest = TTL - lease::FIRST_EXTENSION;
        let life = if renewed { TTL } else { rest };
        assert_eq!(extension.ttl, life, "its full life");
        // A lease without renewal lasts for its ttl from its start, however late the extension is sent.
        world.pass(ms(10));
        (0..3).for_each(|it| world.answer(&mut hold, &extension, it, &YES));
        assert_eq!(world.left(&hold), Ok(life - ms(10)));
    }
}

#[test]
fn a_late_first_extension_does_not_lengthen_a_fixed_lease() {
    let mut world = World::new();
    let terms = Terms {
        renewed: false,
        ..world.terms()
    };
    let mut hold = world.won(terms, &[0, 1, 2], lease::FIRST_LIFE);
    world.pass(ms(400));

    let extension = hold.on_due(world.now(), &world).unwrap();
    (0..3).for_each(|it| world.answer(&mut hold, &extension, it, &YES));

    assert_eq!(world.left(&hold), Ok(TTL - ms(400)));
}

#[test]
fn d8_a_fixed_lease_gets_its_missing_key_and_keeps_its_end() {
    let mut world = World::new();
    let terms = Terms {
        renewed: false,
        ..world.terms()
    };
    let mut hold = world.won(terms, &[0, 1], TTL);
    hold.on_grant(node(2), &GONE, false, false, world.now().moment);
    assert_eq!(world.next_in(&hold), Some(lease::FIRST_EXTENSION));
    world.pass(lease::FIRST_EXTENSION);

    let extension = hold.on_due(world.now(), &world).unwrap();
    assert_eq!((extension.to, extension.sets), (nodes(0..3), nodes(0..3)));
    (0..2).for_each(|it| world.answer(&mut hold, &extension, it, &YES));
    world.answer(&mut hold, &extension, 2, &SET);

    let rest = TTL - lease::FIRST_EXTENSION;
    assert_eq!(hold.promises.kept(world.now().moment), nodes(0..3));
    assert_eq!(world.left(&hold), Ok(rest));
    assert_eq!(world.next_in(&hold), Some(rest), "no renewal");
}

#[test]
fn a_lock_is_extended_early_if_a_voting_server_that_has_answered_lacks_it() {
    for (refuses, votes, is_extended) in [
        (true, true, true),
        (true, false, false),
        (false, true, false),
    ] {
        let mut world = World::new();
        let mut hold = world.won(world.terms(), &[0, 1], TTL);
        let now = world.now();
        if refuses {
            hold.on_grant(node(2), &GONE, false, false, now.moment);
        }
        world.voting = nodes(0..if votes { 3 } else { 2 });
        world.pass(lease::FIRST_EXTENSION);

        let extension = hold.on_due(world.now(), &world);

        assert_eq!(extension.is_some(), is_extended, "{refuses} {votes}");
        assert!(is_extended || Some(ms(50)) < world.next_in(&hold));
    }
}

#[test]
fn a_lock_is_extended_with_others_if_it_is_nearly_due_and_not_if_it_is_not() {
    let early = lease::renew_with_others_after(TTL);
    let due = lease::renew_after(TTL);
    for (age, is_extended) in [
        (early / 2, false),
        (early - ms(1), false),
        (due - ms(1), true),
        (due, true),
    ] {
        let mut world = World::new();
        let mut hold = world.hold();
        world.pass(age);
        let extension = hold.on_due(world.now(), &world);
        assert_eq!(extension.is_some(), is_extended, "at the age of {age:?}");
        let next = world.next_in(&hold);
        assert!(is_extended || next == Some(due - age), "{next:?}");
    }
}

#[test]
fn a_renewed_hold_is_reported_once_after_an_hour() {
    let hour = lease::LONG_HOLD;
    for renewed in [true, false] {
        let mut world = World::new();
        let terms = Terms {
            renewed,
            ..world.terms()
        };
        let mut hold = world.won(terms, &[0, 1, 2], 2 * hour);
        let mut told = |time| {
            world.pass(time);
            hold.on_due(world.now(), &world);
            hold.fail(world.now(), &world);
            let news = world.news(&mut hold);
            news.contains(&News::HeldLong)
        };
        let told = [hour - ms(1), ms(1), ms(1)].map(&mut told);
        assert_eq!(told, [false, renewed, false]);
    }
}
