//! The times of a held lock.

use std::time::Duration;

use crate::config::Margin;
use crate::ids::wide;
use crate::time::Moment;

/// The moment from which the holder must no longer act; `None` if no clock can show it.
///
/// A `ttl` shorter than its `margin` gives `sent`: nothing of it is usable. Nothing here wraps or
/// panics.
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

/// Time from the send of the last confirmed round to the next extension: a third of the ttl, so
/// that two more tries fit before the end of the lease.
pub(crate) fn renew_after(ttl: Duration) -> Duration {
    ttl.checked_div(3).unwrap_or(ttl)
}

/// Time after which an extension may join others that are due. Locks acquired at about the same
/// time are extended together from then on: a joint send costs a third of single sends, or less.
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

/// Life of a handed-over lock, until the call has extended it. A stopped client delays the others
/// for this time.
pub(crate) const FIRST_LIFE: Duration = Duration::from_secs(1);

/// [`use_until`] of a handed-over key of a lock with this ttl: behind the acquire sent at `sent`.
pub(crate) fn first_use_until(sent: Moment, ttl: Duration, margin: Margin) -> Option<Moment> {
    let life = ttl.min(FIRST_LIFE);
    use_until(sent, life, margin.of(life))
}

/// Time to the first extension of a hold with such keys, or without a voting server.
pub(crate) const FIRST_EXTENSION: Duration = Duration::from_millis(50);

/// Age of a renewed hold that is worth a warning: its guard may be forgotten.
pub(crate) const LONG_HOLD: Duration = Duration::from_secs(60 * 60);

/// Shortest time between two checks of a lock in doubt: a node with constant clock steps must not
/// cause more extensions than renewal does.
pub(crate) fn check_pause(ttl: Duration) -> Duration {
    renew_after(ttl).checked_div(2).unwrap_or(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_holder_counts_with_the_ttl_sent_to_nodes() {
        let ttl = Duration::from_micros(2_500_999);
        assert_eq!(
            (millis(ttl), whole_millis(ttl)),
            (2_500, Duration::from_millis(2_500))
        );
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }

    #[test]
    fn three_extensions_fit_into_a_lease_and_retries_pause() {
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
    fn a_renewal_with_others_is_less_than_a_tenth_early() {
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
}
