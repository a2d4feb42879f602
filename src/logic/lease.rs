//! The life of one held lock: held, then lost or released, and never held again; and how long it may be trusted.
//!
//! ```text
//!   sent            won                      use_until      may expire
//!    |---- round ----|--------- usable ----------|-- margin --|
//!    |------------------------- ttl ---------------------------|
//! ```
//!
//! Every node starts its own countdown when the command reaches it, which is never before we sent it. So the holder
//! counts from `sent`, and can only be too careful: counting from `won` would trust the lock for one round trip longer
//! than the nodes do.

use std::time::Duration;

use crate::error::Lost;
use crate::time::Moment;

/// The moment from which the holder must no longer act; `None` if no clock can show it.
///
/// A `ttl` that is too short for its own `margin` gives `sent`: nothing of it is usable. Nothing here wraps or panics.
pub(crate) fn use_until(sent: Moment, ttl: Duration, margin: Duration) -> Option<Moment> {
    sent.checked_add(ttl.saturating_sub(margin))
}

/// A ttl as it is sent: whole milliseconds, rounded down. The holder counts with the same number.
pub(crate) fn whole_millis(ttl: Duration) -> Duration {
    Duration::from_millis(millis(ttl))
}

pub(crate) fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

/// How long after the send of the last confirmed round a lease is extended: a third of its ttl, so that two more tries fit
/// before the lease is over.
pub(crate) fn renew_after(ttl: Duration) -> Duration {
    ttl.checked_div(3).unwrap_or(ttl)
}

/// After how long an extension may go along with others that are due by then. Locks that were acquired at about the same time
/// are extended together from then on: what is sent together costs a third of what it costs one by one, or less.
pub(crate) fn renew_with_others_after(ttl: Duration) -> Duration {
    renew_after(ttl)
        .saturating_mul(15)
        .checked_div(16)
        .unwrap_or(ttl)
}

/// How long after an extension that failed the next is tried.
pub(crate) fn retry_after(response_timeout: Duration) -> Duration {
    response_timeout.checked_div(2).unwrap_or(response_timeout)
}

/// For how long a server hands a lock over: until the call that gets it has extended it. A client that was stopped holds up the
/// others for so long.
pub(crate) const FIRST_LIFE: Duration = Duration::from_secs(1);

/// After how long a hold is extended whose keys have that life, or that lacks a server which has a vote.
pub(crate) const FIRST_EXTENSION: Duration = Duration::from_millis(50);

/// After how long a hold that is still renewed is worth a warning: its guard may be forgotten.
pub(crate) const LONG_HOLD: Duration = Duration::from_secs(60 * 60);

/// How long after one check of a lock in doubt the next may follow: a node whose clock is set all the time must not make
/// for more extensions than renewal does.
pub(crate) fn check_pause(ttl: Duration) -> Duration {
    renew_after(ttl).checked_div(2).unwrap_or(ttl)
}

/// After how long an extension gives a lock's fencing counters their full `life` again. Much longer than most locks are
/// held for, and short enough that a counter which misses some of these still outlasts every ttl that is allowed with it.
pub(crate) fn keep_counter_after(life: Duration) -> Duration {
    life.checked_div(24).unwrap_or(life)
}

/// Where a lease is in its life. It goes from `Held` to one of the others, once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LeasePhase {
    Held,
    Lost(Lost),
    Released,
}

/// The right to act until [`Lease::valid_until`] says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    phase: LeasePhase,
    use_until: Moment,
    /// Renewal ends here, and so does the lease.
    hold_until: Option<Moment>,
    renewed: bool,
}

/// What a confirmed extension has changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Extended {
    /// The lease now lasts as long as the extension allows.
    Longer,
    /// Nothing: an earlier one lasts longer.
    NotLonger,
    /// It was confirmed, but after the lease was over: what it left on the nodes must be taken back.
    TooLate,
    /// The lease had been released: the release is queued behind the extension and takes care of it.
    Released,
}

/// What a lease was when its holder gave it back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// It was held, and nobody else can have the lock before `until`.
    Released { until: Moment },
    /// It had run out, and nobody had noticed: that is to be announced.
    LostNow(Lost),
    /// It had been lost, which has been announced, or is being.
    LostBefore(Lost),
}

impl Lease {
    /// A lease that was just won. `renewed`: whether someone extends it before it runs out.
    pub(crate) fn new(won_until: Moment, hold_until: Option<Moment>, renewed: bool) -> Lease {
        let mut lease = Lease {
            phase: LeasePhase::Held,
            use_until: won_until,
            hold_until,
            renewed,
        };
        lease.use_until = lease.capped(won_until);
        lease
    }

    /// Until when the holder may act, or how the lock was lost.
    ///
    /// The clock decides, whether or not anybody has announced the loss yet. A caller that is told "lost" by the clock has
    /// to call [`Lease::on_tick`] with the same `now`: a wall clock that is stepped back must not make it "held" again.
    pub(crate) fn valid_until(&self, now: Moment) -> Result<Moment, Lost> {
        match self.phase {
            LeasePhase::Held if !now.has_reached(self.use_until) => Ok(self.use_until),
            LeasePhase::Held => Err(self.reason_of_end()),
            LeasePhase::Lost(lost) => Err(lost),
            // Only a thread that raced the release asks this. For it the lock is gone.
            LeasePhase::Released => Err(Lost::Gone),
        }
    }

    /// Whether someone extends it before it runs out.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    pub(crate) fn is_held(&self) -> bool {
        self.phase == LeasePhase::Held
    }

    pub(crate) fn lost(&self) -> Option<Lost> {
        if let LeasePhase::Lost(lost) = self.phase {
            Some(lost)
        } else {
            None
        }
    }

    /// Whether an extension may be sent now.
    pub(crate) fn may_extend(&self, now: Moment) -> bool {
        self.phase == LeasePhase::Held
            && !now.has_reached(self.use_until)
            && self.hold_until.is_none_or(|it| !now.has_reached(it))
    }

    /// A majority confirmed an extension that lasts until `new_until`.
    ///
    /// RACE: the answer may come after the deadline that the extension was to move. Until it came the lock was not
    /// known to be ours, so it is not brought back: nobody can say who held it in between.
    pub(crate) fn on_extended(&mut self, new_until: Moment, now: Moment) -> Extended {
        match self.phase {
            LeasePhase::Released => Extended::Released,
            LeasePhase::Held if !now.has_reached(self.use_until) => {
                let new_until = self.capped(new_until);
                // Never shorter: nodes never shorten a key's life either.
                if now.until(new_until) < now.until(self.use_until) {
                    return Extended::NotLonger;
                }
                self.use_until = new_until;
                Extended::Longer
            }
            LeasePhase::Held | LeasePhase::Lost(_) => Extended::TooLate,
        }
    }

    /// Ends the lease for `reason`; true if it was held until now, so that the loss is announced exactly once.
    pub(crate) fn lose(&mut self, reason: Lost) -> bool {
        let was_held = self.phase == LeasePhase::Held;
        if was_held {
            self.phase = LeasePhase::Lost(reason);
        }
        was_held
    }

    /// Lets the clock end the lease; the reason if it did so now.
    pub(crate) fn on_tick(&mut self, now: Moment) -> Option<Lost> {
        let over = self.phase == LeasePhase::Held && now.has_reached(self.use_until);
        let reason = over.then(|| self.reason_of_end())?;
        self.lose(reason).then_some(reason)
    }

    /// The holder gives the lock back. It reads "not held" from here on.
    pub(crate) fn release(&mut self, now: Moment) -> Ending {
        match self.phase {
            LeasePhase::Held => match self.on_tick(now) {
                Some(reason) => Ending::LostNow(reason),
                None => {
                    self.phase = LeasePhase::Released;
                    Ending::Released {
                        until: self.use_until,
                    }
                }
            },
            LeasePhase::Lost(reason) => Ending::LostBefore(reason),
            // This cannot come: a release takes the guard.
            LeasePhase::Released => Ending::LostBefore(Lost::Gone),
        }
    }

    /// How long it is until something has to be done: the extension that is due at `renew_at`, or the end.
    pub(crate) fn next_event(&self, renew_at: Moment, now: Moment) -> Duration {
        let end = self.ends_in(now);
        if self.renewed && self.may_extend(now) {
            now.until(renew_at).min(end)
        } else {
            end
        }
    }

    /// How long it is until the end, if nothing is extended.
    pub(crate) fn ends_in(&self, now: Moment) -> Duration {
        now.until(self.use_until)
    }

    /// When it ends, if nothing is extended.
    pub(crate) fn end(&self) -> Moment {
        self.use_until
    }

    fn reason_of_end(&self) -> Lost {
        if self
            .hold_until
            .is_some_and(|it| self.use_until.has_reached(it))
        {
            Lost::MaxHold
        } else if self.renewed {
            Lost::Expired
        } else {
            Lost::LeaseOver
        }
    }

    fn capped(&self, until: Moment) -> Moment {
        self.hold_until.map_or(until, |it| until.earliest(it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::at(Duration::from_millis(millis), Duration::from_millis(millis))
    }

    #[test]
    fn the_holder_stops_a_margin_before_the_nodes_can_let_the_lock_expire() {
        let sent = Moment::at(Duration::from_secs(5), Duration::from_secs(1_000));
        let after = |time| sent.checked_add(time);
        let ttl = Duration::from_secs(10);
        let margin = Duration::from_millis(102);
        assert_eq!(
            use_until(sent, ttl, margin),
            after(Duration::from_millis(9_898))
        );
        assert_eq!(
            use_until(sent, margin, ttl),
            after(Duration::ZERO),
            "nothing of it is usable"
        );
        assert_eq!(
            use_until(sent, Duration::MAX, margin),
            None,
            "no clock shows that"
        );
    }

    #[test]
    fn the_holder_counts_with_the_ttl_that_the_nodes_are_sent() {
        let ttl = Duration::from_micros(2_500_999);
        assert_eq!(
            (millis(ttl), whole_millis(ttl)),
            (2_500, Duration::from_millis(2_500))
        );
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }

    #[test]
    fn d4_a_lease_that_ran_out_is_not_brought_back_by_a_late_extension() {
        let mut lease = Lease::new(at(1_000), None, true);

        assert_eq!(lease.on_extended(at(2_000), at(1_000)), Extended::TooLate);

        assert_eq!(lease.valid_until(at(1_000)), Err(Lost::Expired));
        assert_eq!(lease.on_tick(at(1_000)), Some(Lost::Expired));
        assert_eq!(lease.on_tick(at(1_001)), None, "announced twice");
    }

    #[test]
    fn d1_a_confirmed_extension_moves_the_end() {
        let mut lease = Lease::new(at(1_000), None, true);

        assert_eq!(lease.on_extended(at(1_300), at(999)), Extended::Longer);

        assert_eq!(lease.valid_until(at(1_299)), Ok(at(1_300)));
        assert_eq!(lease.valid_until(at(1_300)), Err(Lost::Expired));
    }

    #[test]
    fn d5_an_extension_never_shortens() {
        let mut lease = Lease::new(at(1_000), None, true);

        assert_eq!(lease.on_extended(at(700), at(500)), Extended::NotLonger);
        assert_eq!(
            lease.on_extended(at(1_000), at(500)),
            Extended::Longer,
            "the nodes that confirmed it last count"
        );

        assert_eq!(lease.valid_until(at(999)), Ok(at(1_000)));
    }

    #[test]
    fn a_lease_can_be_extended_three_times_before_it_is_over_and_no_failure_makes_for_a_busy_loop()
    {
        let ttl = Duration::from_secs(30);
        let timeout = Duration::from_millis(50);
        let fit = ttl.as_nanos() / renew_after(ttl).as_nanos();
        assert_eq!(fit, 3);
        assert!(
            timeout <= retry_after(timeout) * 2 && retry_after(timeout) < timeout,
            "soon, and not at once"
        );
        assert!(
            renew_after(ttl) <= check_pause(ttl) * 2 && check_pause(ttl) < renew_after(ttl),
            "soon, and not at once"
        );
    }

    #[test]
    fn what_goes_along_with_others_is_extended_a_little_early_and_hardly_more_often() {
        for ttl in [
            Duration::from_millis(100),
            Duration::from_secs(10),
            Duration::from_secs(3_600),
        ] {
            let early = renew_with_others_after(ttl);
            let due = renew_after(ttl);
            assert!(early < due && due < early.mul_f64(1.1), "{ttl:?}");
        }
    }

    #[test]
    fn a_lease_knows_whether_it_is_renewed_and_how_it_was_lost() {
        let mut lease = Lease::new(at(1_000), None, true);
        assert!(lease.is_renewed() && !Lease::new(at(1_000), None, false).is_renewed());
        assert_eq!(lease.lost(), None);
        assert!(lease.lose(Lost::Gone) && !lease.lose(Lost::Expired));
        assert_eq!((lease.lost(), lease.is_held()), (Some(Lost::Gone), false));
        assert_eq!(lease.ends_in(at(400)), Duration::from_millis(600));
    }

    #[test]
    fn the_counter_of_a_lock_that_is_renewed_outlasts_a_ttl_without_answers() {
        let ttl = Duration::from_secs(30);
        assert!(!renew_after(ttl).is_zero());
        let day = Duration::from_secs(86_400);
        assert!(
            100 * renew_after(ttl) < keep_counter_after(day),
            "few extensions have to do that"
        );
        for life in (60..100_000).map(Duration::from_secs) {
            // Extensions come a third of a ttl apart, and one of them is the first that is late enough.
            let mut age = renew_after(ttl);
            while age < keep_counter_after(life) {
                age += renew_after(ttl);
            }
            assert!(ttl < life - age, "{life:?}");
        }
    }

    #[test]
    fn a_released_lease_is_not_lost_whatever_comes_after() {
        let mut lease = Lease::new(at(1_000), None, true);

        assert_eq!(lease.release(at(10)), Ending::Released { until: at(1_000) });

        assert!(!lease.lose(Lost::Gone));
        assert_eq!(lease.on_tick(at(5_000)), None);
        assert_eq!(lease.on_extended(at(2_000), at(20)), Extended::Released);
        assert!(lease.valid_until(at(20)).is_err());
    }

    #[test]
    fn h10_releasing_a_lost_lease_says_that_it_was_lost_and_whether_anybody_has_been_told() {
        let mut lease = Lease::new(at(1_000), None, true);
        assert_eq!(lease.release(at(1_000)), Ending::LostNow(Lost::Expired));
        assert_eq!(lease.on_tick(at(1_001)), None, "announced twice");
        assert_eq!(lease.release(at(1_001)), Ending::LostBefore(Lost::Expired));

        let mut lease = Lease::new(at(1_000), None, true);
        assert!(lease.lose(Lost::Gone));
        assert_eq!(lease.release(at(10)), Ending::LostBefore(Lost::Gone));
    }

    #[test]
    fn d10_a_lease_ends_at_its_maximum_hold() {
        let mut lease = Lease::new(at(1_000), Some(at(2_500)), true);

        assert_eq!(lease.on_extended(at(3_000), at(900)), Extended::Longer);

        assert_eq!(lease.valid_until(at(2_499)), Ok(at(2_500)));
        assert!(lease.may_extend(at(2_499)) && !lease.may_extend(at(2_500)));
        assert_eq!(lease.on_tick(at(2_500)), Some(Lost::MaxHold));
    }

    #[test]
    fn a_fixed_lease_waits_for_its_end_only() {
        let lease = Lease::new(at(1_000), None, false);
        assert_eq!(
            lease.next_event(at(300), at(100)),
            Duration::from_millis(900)
        );
        assert_eq!(lease.valid_until(at(1_000)), Err(Lost::LeaseOver));

        let renewed = Lease::new(at(1_000), None, true);
        assert_eq!(
            renewed.next_event(at(300), at(100)),
            Duration::from_millis(200)
        );
        assert_eq!(
            renewed.next_event(at(3_000), at(100)),
            Duration::from_millis(900)
        );
    }
}
