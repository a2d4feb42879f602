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
        /// A thousand years: longer than any quarantine, so that neither is over.
        const LONG: Duration = Duration::from_secs(31_622_400_000);
        other.filter(|it| self.until(LONG) < it.until(LONG)).unwrap_or(self)
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_quarantine_ends_so_long_after_its_beginning_as_it_lasts_however_long_that_is() {
        let origin = crate::time::tick();
        for (seen, served, extra) in [(5, 0, 0), (5, 3, 0), (5, 3, 1), (5, 9, 1), (0, 0, 1)] {
            let (seen, served, extra) = (origin + seen * S, served * S, extra * S);
            let span = QuarantineSpan { served, extra, ..QuarantineSpan::from(seen, Quarantine::Restarted) };
            for length in [10 * S, 20 * S] {
                let end = span.began(origin) + i64::try_from(length.as_nanos()).unwrap();
                assert_eq!(span.until(length), Some(origin + Duration::from_nanos(end.unsigned_abs())), "{span:?}");
                assert_eq!(span.until(length), Some(seen + span.left(length)));
            }
        }
        let over = QuarantineSpan { served: 11 * S, ..QuarantineSpan::from(origin, Quarantine::Restarted) };
        assert_eq!((over.until(10 * S), over.until(11 * S), over.left(10 * S)), (None, None, Duration::ZERO));
    }

    #[test]
    fn of_two_quarantines_the_one_that_ends_later_stays_and_of_two_equal_ones_the_new_one() {
        let seen = crate::time::tick();
        let span = |served, why| QuarantineSpan { served: served * S, ..QuarantineSpan::from(seen, why) };
        let why = |new: QuarantineSpan, old| new.or_later(old).why;
        let (new, old) = (Quarantine::Restarted, Quarantine::Emptied);
        assert_eq!(why(span(3, new), None), new);
        assert_eq!(why(span(3, new), Some(span(2, old))), old);
        assert_eq!(why(span(2, new), Some(span(3, old))), new);
        assert_eq!(why(span(2, new), Some(span(2, old))), new);
    }
}
