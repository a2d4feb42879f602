//! How long a won lock may be trusted.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_stops_a_margin_before_the_nodes_can_let_the_lock_expire() {
        let sent = Moment::at(Duration::from_secs(5), Duration::from_secs(1_000));
        let after = |time| sent.checked_add(time);
        let (ttl, margin) = (Duration::from_secs(10), Duration::from_millis(102));
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
}
