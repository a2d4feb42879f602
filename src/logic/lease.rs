//! The life of one held lock: held, then lost or released, never held again; and its deadlines.
//!
//! ```text
//!   sent            won                      use_until      may expire
//!    |---- round ----|--------- usable ----------|-- margin --|
//!    |------------------------- ttl ---------------------------|
//! ```
//!
//! Every node starts its own countdown when the command arrives, which is never before the send. So the holder counts
//! from `sent` and is always on the safe side: counting from `won` would trust the lock for one round trip longer than
//! the nodes do.

use std::time::Duration;

use crate::error::LostReason;
use crate::ids::wide;
use crate::time::Moment;

/// The moment from which the holder must no longer act; `None` if no clock can show it.
///
/// A `ttl` shorter than its `margin` gives `sent`: nothing of it is usable. Nothing here wraps or panics.
pub(crate) fn use_until(sent: Moment, ttl: Duration, margin: Duration) -> Option<Moment> {
    sent.checked_add(ttl.saturating_sub(margin))
}

/// The ttl in commands: whole milliseconds, rounded down. The holder counts with the same number.
pub(crate) fn whole_millis(ttl: Duration) -> Duration {
    Duration::from_millis(millis(ttl))
}

pub(crate) fn millis(ttl: Duration) -> u64 {
    wide(ttl.as_millis())
}

/// Time from the send of the last confirmed round to the next extension: a third of the ttl, so that two more tries fit
/// before the end of the lease.
pub(crate) fn renew_after(ttl: Duration) -> Duration {
    ttl.checked_div(3).unwrap_or(ttl)
}

/// Time after which an extension may join others that are due. Locks acquired at about the same time are extended
/// together from then on: a joint send costs a third of single sends, or less.
pub(crate) fn renew_with_others_after(ttl: Duration) -> Duration {
    renew_after(ttl)
        .saturating_mul(15)
        .checked_div(16)
        .unwrap_or(ttl)
}

/// Pause after a failed extension.
pub(crate) fn retry_after(response_timeout: Duration) -> Duration {
    response_timeout.checked_div(2).unwrap_or(response_timeout)
}

/// Life of a handed-over lock, until the call has extended it. A stopped client delays the others for this time.
pub(crate) const FIRST_LIFE: Duration = Duration::from_secs(1);

/// Time to the first extension of a hold with such keys, or without a voting server.
pub(crate) const FIRST_EXTENSION: Duration = Duration::from_millis(50);

/// Age of a renewed hold that is worth a warning: its guard may be forgotten.
pub(crate) const LONG_HOLD: Duration = Duration::from_secs(60 * 60);

/// Shortest time between two checks of a lock in doubt: a node with constant clock steps must not cause more extensions
/// than renewal does.
pub(crate) fn check_pause(ttl: Duration) -> Duration {
    renew_after(ttl).checked_div(2).unwrap_or(ttl)
}

/// Time after which an extension renews the full `life` of a lock's fencing counters. Much longer than most locks are
/// held, and short enough that a counter that misses some of these still outlasts every allowed ttl.
pub(crate) fn keep_counter_after(life: Duration) -> Duration {
    life.checked_div(24).unwrap_or(life)
}

/// Phase of a lease. Goes once from `Held` to one of the others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LeasePhase {
    Held,
    Lost(LostReason),
    Released,
}

/// The right to act until [`Lease::valid_until`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    phase: LeasePhase,
    use_until: Moment,
    /// Renewal ends here, and so does the lease.
    hold_until: Option<Moment>,
    renewed: bool,
}

/// Effect of a confirmed extension.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Extended {
    /// The lease now lasts as long as the extension allows.
    Longer,
    /// No change: an earlier one lasts longer.
    NotLonger,
    /// Confirmed after the end of the lease: its effects on the nodes must be taken back.
    TooLate,
    /// The lease was released: the release runs after the extension.
    Released,
}

/// State of a lease at its release.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// Held. No other client can have the lock before `until`.
    Released { until: Moment },
    /// Expired unnoticed: the loss is to be announced.
    LostNow(LostReason),
    /// Lost before: the loss was announced, or is about to be.
    LostBefore(LostReason),
}

impl Lease {
    /// A new lease. `renewed`: whether it is extended before its end.
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

    /// End of the holder's right to act, or how the lock was lost.
    ///
    /// The clock decides, announced or not. After a loss by the clock the caller must call [`Lease::on_tick`] with the
    /// same `now`: a wall clock that is stepped back must not make the lease "held" again.
    pub(crate) fn valid_until(&self, now: Moment) -> Result<Moment, LostReason> {
        match self.phase {
            LeasePhase::Held if !now.has_reached(self.use_until) => Ok(self.use_until),
            LeasePhase::Held => Err(self.reason_of_end()),
            LeasePhase::Lost(lost) => Err(lost),
            // Only a thread in a race with the release comes here. For it the lock is gone.
            LeasePhase::Released => Err(LostReason::Gone),
        }
    }

    /// Whether it is extended before its end.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    pub(crate) fn is_held(&self) -> bool {
        self.phase == LeasePhase::Held
    }

    pub(crate) fn lost(&self) -> Option<LostReason> {
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

    /// A majority confirmed an extension until `new_until`.
    ///
    /// RACE: T1 sends an extension; the old deadline passes; T2 brings the answer. Therefore the lease stays lost:
    /// another client may have held the lock in between.
    pub(crate) fn on_extended(&mut self, new_until: Moment, now: Moment) -> Extended {
        match self.phase {
            LeasePhase::Released => Extended::Released,
            LeasePhase::Held if !now.has_reached(self.use_until) => {
                let new_until = self.capped(new_until);
                // Never shorter: nor do nodes shorten a key's life.
                if now.until(new_until) < now.until(self.use_until) {
                    return Extended::NotLonger;
                }
                self.use_until = new_until;
                Extended::Longer
            }
            LeasePhase::Held | LeasePhase::Lost(_) => Extended::TooLate,
        }
    }

    /// Ends the lease for `reason`. True if it was held until now, so that the loss is announced exactly once.
    pub(crate) fn lose(&mut self, reason: LostReason) -> bool {
        let was_held = self.phase == LeasePhase::Held;
        if was_held {
            self.phase = LeasePhase::Lost(reason);
        }
        was_held
    }

    /// Ends an expired lease. The reason, if it ended now.
    pub(crate) fn on_tick(&mut self, now: Moment) -> Option<LostReason> {
        let over = self.phase == LeasePhase::Held && now.has_reached(self.use_until);
        let reason = over.then(|| self.reason_of_end())?;
        self.lose(reason).then_some(reason)
    }

    /// Releases the lease: "not held" from here on.
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
            // Impossible: a release consumes the guard.
            LeasePhase::Released => Ending::LostBefore(LostReason::Gone),
        }
    }

    /// Time until the next event: the extension at `renew_at`, or the end.
    pub(crate) fn next_event(&self, renew_at: Moment, now: Moment) -> Duration {
        let end = self.ends_in(now);
        if self.renewed && self.may_extend(now) {
            now.until(renew_at).min(end)
        } else {
            end
        }
    }

    /// Time until the end without an extension.
    pub(crate) fn ends_in(&self, now: Moment) -> Duration {
        now.until(self.use_until)
    }

    /// End without an extension.
    pub(crate) fn end(&self) -> Moment {
        self.use_until
    }

    /// How it is lost at its end without an extension.
    pub(crate) fn reason_of_end(&self) -> LostReason {
        if self
            .hold_until
            .is_some_and(|it| self.use_until.has_reached(it))
        {
            LostReason::MaxHold
        } else if self.renewed {
            LostReason::Expired
        } else {
            LostReason::LeaseOver
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

        assert_eq!(lease.valid_until(at(1_000)), Err(LostReason::Expired));
        assert_eq!(lease.on_tick(at(1_000)), Some(LostReason::Expired));
        assert_eq!(lease.on_tick(at(1_001)), None, "announced twice");
    }

    #[test]
    fn d1_a_confirmed_extension_moves_the_end() {
        let mut lease = Lease::new(at(1_000), None, true);

        assert_eq!(lease.on_extended(at(1_300), at(999)), Extended::Longer);

        assert_eq!(lease.valid_until(at(1_299)), Ok(at(1_300)));
        assert_eq!(lease.valid_until(at(1_300)), Err(LostReason::Expired));
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
        assert!(lease.lose(LostReason::Gone) && !lease.lose(LostReason::Expired));
        assert_eq!(
            (lease.lost(), lease.is_held()),
            (Some(LostReason::Gone), false)
        );
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

        assert!(!lease.lose(LostReason::Gone));
        assert_eq!(lease.on_tick(at(5_000)), None);
        assert_eq!(lease.on_extended(at(2_000), at(20)), Extended::Released);
        assert!(lease.valid_until(at(20)).is_err());
    }

    #[test]
    fn h10_releasing_a_lost_lease_says_that_it_was_lost_and_whether_anybody_has_been_told() {
        let mut lease = Lease::new(at(1_000), None, true);
        assert_eq!(
            lease.release(at(1_000)),
            Ending::LostNow(LostReason::Expired)
        );
        assert_eq!(lease.on_tick(at(1_001)), None, "announced twice");
        assert_eq!(
            lease.release(at(1_001)),
            Ending::LostBefore(LostReason::Expired)
        );

        let mut lease = Lease::new(at(1_000), None, true);
        assert!(lease.lose(LostReason::Gone));
        assert_eq!(lease.release(at(10)), Ending::LostBefore(LostReason::Gone));
    }

    #[test]
    fn d10_a_lease_ends_at_its_maximum_hold() {
        let mut lease = Lease::new(at(1_000), Some(at(2_500)), true);

        assert_eq!(lease.on_extended(at(3_000), at(900)), Extended::Longer);

        assert_eq!(lease.valid_until(at(2_499)), Ok(at(2_500)));
        assert!(lease.may_extend(at(2_499)) && !lease.may_extend(at(2_500)));
        assert_eq!(lease.on_tick(at(2_500)), Some(LostReason::MaxHold));
    }

    #[test]
    fn a_fixed_lease_waits_for_its_end_only() {
        let lease = Lease::new(at(1_000), None, false);
        assert_eq!(
            lease.next_event(at(300), at(100)),
            Duration::from_millis(900)
        );
        assert_eq!(lease.valid_until(at(1_000)), Err(LostReason::LeaseOver));

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
