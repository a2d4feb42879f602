//! How long one quarantine of a node lasts.

use std::time::Duration;

use crate::error::Quarantine;
use crate::time::Tick;

/// A quarantine that began at some time. How long it lasts may only turn out later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuarantineSpan {
    /// When we learned of it.
    pub(super) seen: Tick,
    /// How long before that it began.
    pub(super) served: Duration,
    /// How much longer than others it lasts.
    pub(super) extra: Duration,
    pub(super) why: Quarantine,
}

impl QuarantineSpan {
    pub(super) fn from(seen: Tick, why: Quarantine) -> QuarantineSpan {
        QuarantineSpan { seen, served: Duration::ZERO, extra: Duration::ZERO, why }
    }

    /// How much of it was left when we learned of it.
    pub(super) fn left(self, length: Duration) -> Duration {
        length.saturating_add(self.extra).saturating_sub(self.served)
    }

    pub(super) fn until(self, length: Duration) -> Option<Tick> {
        let left = self.left(length);
        if left.is_zero() { None } else { self.seen.checked_add(left) }
    }

    /// When it began, in nanoseconds after `origin`; its end is that and how long it lasts.
    pub(crate) fn began(self, origin: Tick) -> i64 {
        let after = self.seen.saturating_duration_since(origin).saturating_add(self.extra);
        nanos(after).saturating_sub(nanos(self.served))
    }

    /// The one that began later: it ends later, however long they last.
    pub(super) fn or_later(self, other: Option<QuarantineSpan>) -> QuarantineSpan {
        /// Longer than any quarantine, so that neither is over.
        const LONG: Duration = Duration::from_secs(1_000 * 366 * 24 * 60 * 60);
        other.filter(|it| self.until(LONG) < it.until(LONG)).unwrap_or(self)
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
