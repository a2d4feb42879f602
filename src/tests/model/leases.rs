//! Every short life of a lease.

use super::*;
use crate::error::LostReason;
use crate::logic::lease::{Ending, Extended, Lease};

/// What can happen to a lease. Times are relative to the moment at which it happens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// A majority confirmed an extension that lasts for so much longer.
    Confirmed(u64),
    Tick,
    Lose,
    Release,
    /// Time goes by, on both clocks.
    Pass(u64),
    /// Time goes by while only the wall clock runs, or it is stepped forward: the machine was stopped from outside.
    WallForward(u64),
    /// The wall clock is stepped back.
    WallBack(u64),
}

/// What a lease has been through, in so far as it matters to the next check.
#[derive(Clone, Debug)]
struct Life {
    lease: Lease,
    boot: u64,
    wall: u64,
    /// The ends that majorities have confirmed while the lease was held, as boot and wall time.
    confirmed: Vec<(u64, u64)>,
    hold: Option<u64>,
    renewed: bool,
    announced: Option<LostReason>,
    released: bool,
    past: Vec<Event>,
}

impl Life {
    fn new(won_until: u64, hold: Option<u64>, renewed: bool) -> Life {
        Life {
            lease: Lease::new(at(won_until), hold.map(at), renewed),
            boot: 0,
            wall: 0,
            confirmed: vec![(won_until, won_until)],
            hold,
            renewed,
            announced: None,
            released: false,
            past: vec![],
        }
    }

    fn now(&self) -> Moment {
        apart(BOOT + self.boot, WALL + self.wall)
    }

    /// Whether this lease should be valid: not ended by anyone, and on either clock before an end that a majority has
    /// confirmed and before the end of the hold.
    fn should_be_valid(&self) -> bool {
        self.announced.is_none()
            && !self.released
            && self
                .hold
                .is_none_or(|hold| self.boot < hold && self.wall < hold)
            && self
                .confirmed
                .iter()
                .any(|(boot, wall)| self.boot < *boot && self.wall < *wall)
    }

    fn happen(&mut self, event: Event) {
        self.past.push(event);
        let now = self.now();
        let was_held = self.lease.is_held();
        let was_valid = self.lease.valid_until(now);
        match event {
            Event::Pass(by) => {
                self.boot += by;
                self.wall += by;
            }
            Event::WallForward(by) => self.wall += by,
            Event::WallBack(by) => self.wall = self.wall.saturating_sub(by),
            Event::Confirmed(more) => {
                let end = (self.boot + more, self.wall + more);
                let extended = self
                    .lease
                    .on_extended(apart(BOOT + end.0, WALL + end.1), now);
                match (was_valid, was_held) {
                    (Ok(before), _) => {
                        let after = self.lease.valid_until(now).unwrap();
                        // The end is the one that was confirmed just now, or the maximum hold.
                        let capped = self
                            .hold
                            .map_or(end, |hold| (end.0.min(hold), end.1.min(hold)));
                        let newest = after == apart(BOOT + capped.0, WALL + capped.1);
                        match extended {
                            Extended::Longer => assert!(newest, "{self:?}"),
                            Extended::NotLonger => assert_eq!(after, before, "{self:?}"),
                            other => panic!("{other:?}: {self:?}"),
                        }
                        assert!(now.until(before) <= now.until(after), "shortened: {self:?}");
                        self.confirmed.push(end);
                    }
                    (Err(_), _) if self.released => {
                        assert_eq!(extended, Extended::Released, "{self:?}")
                    }
                    (Err(_), _) => assert_eq!(extended, Extended::TooLate, "{self:?}"),
                }
            }
            Event::Tick => {
                let lost = self.lease.on_tick(now);
                assert_eq!(lost.is_some(), was_held && was_valid.is_err(), "{self:?}");
                if lost.is_some() {
                    assert_eq!(was_valid.err(), lost);
                    self.announce(lost);
                }
            }
            Event::Lose => {
                assert_eq!(self.lease.lose(LostReason::Gone), was_held, "{self:?}");
                if was_held {
                    self.announce(Some(LostReason::Gone));
                }
            }
            Event::Release => match self.lease.release(now) {
                Ending::Released { until } => {
                    assert!(was_held && was_valid == Ok(until), "{self:?}");
                    self.released = true;
                }
                Ending::LostNow(reason) => {
                    assert!(was_held && was_valid == Err(reason), "{self:?}");
                    self.announce(Some(reason));
                }
                Ending::LostBefore(reason) => {
                    assert!(!was_held && was_valid == Err(reason), "{self:?}")
                }
            },
        }
        self.check();
    }

    fn announce(&mut self, lost: Option<LostReason>) {
        assert_eq!(self.announced, None, "announced twice: {self:?}");
        assert!(!self.released, "released, then announced as lost: {self:?}");
        self.announced = lost;
    }

    fn check(&self) {
        let lease = &self.lease;
        let now = self.now();
        let over = self.released || self.announced.is_some();
        assert_eq!(lease.is_held(), !over, "{self:?}");
        assert_eq!(lease.lost(), self.announced, "{self:?}");
        match lease.valid_until(now) {
            Ok(until) => {
                assert!(
                    self.should_be_valid(),
                    "valid without a majority's word, or beyond its hold: {self:?}"
                );
                // Not only now, but for as long as it says.
                assert!(
                    self.confirmed
                        .iter()
                        .any(|(boot, wall)| earlier(until, apart(BOOT + boot, WALL + wall))),
                    "lasts longer than any majority said: {self:?}",
                );
                assert!(
                    self.hold.is_none_or(|hold| earlier(until, at(hold))),
                    "outlives its hold: {self:?}"
                );
                assert!(lease.may_extend(now), "{self:?}");
                for renew_at in [at(0), at(1_000)] {
                    assert!(
                        lease.next_event(renew_at, now) <= now.until(until),
                        "sleeps beyond its end: {self:?}"
                    );
                }
            }
            Err(lost) => {
                assert!(!lease.may_extend(now), "extended after its end: {self:?}");
                if let Some(announced) = self.announced {
                    assert_eq!(lost, announced, "{self:?}");
                } else if !over {
                    assert_eq!(
                        lease.next_event(at(0), now),
                        Duration::ZERO,
                        "sleeps after its end: {self:?}"
                    );
                    let of_its_kind = if self.renewed {
                        LostReason::Expired
                    } else {
                        LostReason::LeaseOver
                    };
                    assert!(
                        lost == of_its_kind || (lost == LostReason::MaxHold && self.hold.is_some()),
                        "{self:?}"
                    );
                }
            }
        }
    }
}

/// Whether `one` is not after `other` on either clock.
fn earlier(one: Moment, other: Moment) -> bool {
    one.since(other) == Duration::ZERO
}

/// Lives every life of `steps` events; answers how many events those are together.
fn each_life(life: &Life, alphabet: &[Event], steps: usize, check: &impl Fn(&Life)) -> u64 {
    let Some(rest) = steps.checked_sub(1) else {
        return 0;
    };
    let mut events = 0;
    for event in alphabet {
        let mut next = life.clone();
        next.happen(*event);
        check(&next);
        events += 1 + each_life(&next, alphabet, rest, check);
    }
    events
}

/// With both clocks in step, the lease is valid exactly while the longest confirmed end and the hold last.
#[test]
fn d4_a_lease_is_valid_exactly_until_its_longest_confirmed_end_and_never_again() {
    use Event::{Confirmed, Lose, Pass, Release, Tick};

    let mut events = 0;
    let steps = if long() { 8 } else { 6 };
    for hold in [None, Some(2), Some(5)] {
        for renewed in [true, false] {
            let alphabet = [
                Confirmed(1),
                Confirmed(4),
                Tick,
                Lose,
                Release,
                Pass(1),
                Pass(3),
            ];
            events += each_life(&Life::new(3, hold, renewed), &alphabet, steps, &|life| {
                assert_eq!(
                    life.lease.valid_until(life.now()).is_ok(),
                    life.should_be_valid(),
                    "{life:?}"
                );
            });
        }
    }
    assert!(long() || events == 823_536, "{events}");
}

/// The clocks go apart: being valid too short is allowed, too long is not.
#[test]
fn c2_no_step_of_the_wall_clock_makes_a_lease_last_longer() {
    use Event::{Confirmed, Lose, Pass, Release, Tick, WallBack, WallForward};

    let mut events = 0;
    let steps = if long() { 7 } else { 6 };
    let alphabet = [
        Confirmed(4),
        Confirmed(1),
        Tick,
        Lose,
        Release,
        Pass(1),
        Pass(2),
        WallForward(2),
        WallBack(2),
    ];
    for renewed in [true, false] {
        events += each_life(&Life::new(3, None, renewed), &alphabet, steps, &|_| {});
    }
    assert!(long() || events == 1_195_740, "{events}");
}

#[test]
fn c2_no_step_of_the_wall_clock_makes_a_lease_with_a_maximum_hold_last_longer() {
    use Event::{Confirmed, Pass, Tick, WallBack, WallForward};

    let alphabet = [
        Confirmed(4),
        Tick,
        Pass(1),
        Pass(2),
        WallForward(2),
        WallBack(2),
    ];
    for hold in [3, 5] {
        each_life(&Life::new(3, Some(hold), true), &alphabet, 6, &|_| {});
    }
}

/// An extension for a shorter time than what is left, whose answer came when that time was over.
#[test]
fn d5_an_extension_that_is_over_before_the_lease_leaves_the_lease_as_it_is() {
    let mut lease = Lease::new(at(1_000), None, true);
    let before = lease.valid_until(at(500));

    assert_ne!(lease.on_extended(at(400), at(500)), Extended::TooLate);

    assert_eq!(lease.valid_until(at(500)), before);
}

#[test]
fn the_reason_of_a_loss_does_not_depend_on_when_it_is_noticed() {
    let mut lease = Lease::new(at(1_000), Some(at(5_000)), true);
    assert_eq!(lease.valid_until(at(1_000)), Err(LostReason::Expired));
    assert_eq!(lease.on_tick(at(5_000)), Some(LostReason::Expired));
}

/// The wall clock is stepped forward by mistake and back again, and only the holder's own thread looks in between.
#[test]
fn d4_a_holder_who_was_told_no_is_never_told_yes_again() {
    let mut lease = Lease::new(at(1_000), None, true);
    let stepped = apart(BOOT + 10, WALL + 2_000);
    assert_eq!(lease.valid_until(stepped), Err(LostReason::Expired));
    assert_eq!(lease.on_tick(stepped), Some(LostReason::Expired));
    assert_eq!(lease.valid_until(at(20)), Err(LostReason::Expired));
}
