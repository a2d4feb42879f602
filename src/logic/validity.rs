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
