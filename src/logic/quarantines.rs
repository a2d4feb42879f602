//! The quarantines of a server, with their starts and remaining times.

use std::time::Duration;

use crate::error::QuarantineReason;
use crate::time::Tick;

/// Vote of a server in question.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum VoteKind {
    Grant,
    Extension,
}

/// The start of a quarantine. Its length may become known later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuarantineStart {
    /// Time at which it became known.
    pub(crate) seen: Tick,
    /// Time between its start and `seen`.
    pub(crate) served: Duration,
    pub(crate) why: QuarantineReason,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quarantines {
    /// The quarantine after a restart, or since the start of the record.
    began: Option<QuarantineStart>,
    /// Start of counting extensions: the end of that quarantine as first known.
    extends_from: Option<Tick>,
    /// The quarantine after a clock step.
    stepped: Option<QuarantineStart>,
}

impl QuarantineStart {
    pub(crate) fn now(seen: Tick, why: QuarantineReason) -> QuarantineStart {
        QuarantineStart {
            seen,
            served: Duration::ZERO,
            why,
        }
    }

    pub(crate) fn until(self, length: Duration) -> Option<Tick> {
        let left = length.saturating_sub(self.served);
        if left.is_zero() {
            None
        } else {
            self.seen.checked_add(left)
        }
    }

    fn quarantine_remaining(
        self,
        asked: Tick,
        length: Duration,
    ) -> Option<(Duration, QuarantineReason)> {
        let left = self.until(length)?.saturating_duration_since(asked);
        (!left.is_zero()).then_some((left, self.why))
    }
}

impl Quarantines {
    /// Begins a quarantine, of this length as known so far.
    pub(crate) fn begin(&mut self, began: QuarantineStart, length: Duration) {
        self.lengthen(began);
        self.extends_from = self.extends_from.max(began.until(length));
    }

    /// Moves the start of a known quarantine to a later time. That ends no hold.
    pub(crate) fn lengthen(&mut self, began: QuarantineStart) {
        /// A thousand years: longer than any quarantine, so that neither is over.
        const LONG: Duration = Duration::from_secs(31_622_400_000);
        self.began = self
            .began
            .into_iter()
            .chain([began])
            .max_by_key(|it| it.until(LONG));
    }

    pub(crate) fn step(&mut self, seen: Tick) {
        self.stepped = Some(QuarantineStart::now(seen, QuarantineReason::ClockStep));
    }

    pub(crate) fn why(&self) -> Option<QuarantineReason> {
        self.began.map(|it| it.why)
    }

    /// Time left for a command sent at `asked`, and why; `None` if its vote counts. From the send,
    /// because the server may have run the command at any time after it.
    ///
    /// A later discovered longer quarantine does not count for extensions: it would end holds and
    /// protect nobody. Nor does a clock step: a key that is ours now was ours before. Where it was
    /// lost, nothing sets it again before [`Quarantines::may_set`], but for an extension that was
    /// sent before the step was seen: its answer shows that.
    pub(crate) fn quarantine_remaining(
        &self,
        vote_kind: VoteKind,
        asked: Tick,
        length: Option<Duration>,
    ) -> Option<(Duration, QuarantineReason)> {
        let length = length?;
        match vote_kind {
            VoteKind::Grant => {
                let left = [self.began, self.stepped]
                    .into_iter()
                    .flatten()
                    .filter_map(|it| it.quarantine_remaining(asked, length));
                left.max_by_key(|it| it.0)
            }
            VoteKind::Extension => {
                let left = self.extends_from?.saturating_duration_since(asked);
                (!left.is_zero()).then_some((left, self.began?.why))
            }
        }
    }

    /// Whether a lost key may be set again on the server. Not for a while after a step of its
    /// clock: extensions count then, because a key that is there has been there all the time.
    pub(crate) fn may_set(&self, now: Tick, length: Option<Duration>) -> bool {
        self.stepped
            .zip(length)
            .is_none_or(|(it, length)| it.quarantine_remaining(now, length).is_none())
    }
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::arithmetic_side_effects,
        reason = "a test may overflow: it fails then"
    )]

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn shown(seen: Tick, served: u32, why: QuarantineReason) -> QuarantineStart {
        QuarantineStart {
            seen,
            served: served * S,
            why,
        }
    }

    fn begun(seen: Tick, served: u32) -> Quarantines {
        let mut quarantines = Quarantines::default();
        let began = shown(seen, served, QuarantineReason::Restarted);
        quarantines.begin(began, 10 * S);
        quarantines
    }

    #[test]
    fn a_quarantine_ends_its_length_after_its_start() {
        let seen = crate::time::tick();
        let began = shown(seen, 3, QuarantineReason::Restarted);
        assert_eq!(began.until(10 * S), Some(seen + 7 * S));
        assert_eq!(
            (began.until(3 * S), began.until(2 * S)),
            (None, None),
            "it was over when it was seen"
        );
        let quarantines = begun(seen, 3);
        let left = |vote_kind, after: u32, length| {
            quarantines
                .quarantine_remaining(vote_kind, seen + after * S, length)
                .map(|it| it.0)
        };
        assert_eq!(
            (
                left(VoteKind::Grant, 5, Some(10 * S)),
                left(VoteKind::Grant, 7, Some(10 * S))
            ),
            (Some(2 * S), None)
        );
        // Another program turns out to need longer: that ends no hold.
        assert_eq!(
            (
                left(VoteKind::Grant, 7, Some(20 * S)),
                left(VoteKind::Extension, 7, Some(20 * S))
            ),
            (Some(10 * S), None)
        );
        assert_eq!(
            (
                left(VoteKind::Grant, 0, None),
                left(VoteKind::Extension, 0, None)
            ),
            (None, None)
        );
    }

    #[test]
    fn of_two_quarantines_the_one_counts_that_began_later() {
        let seen = crate::time::tick();
        for served in [[3, 5], [5, 3]] {
            let mut quarantines = Quarantines::default();
            served
                .into_iter()
                .for_each(|it| quarantines.begin(shown(seen, it, QuarantineReason::New), 4 * S));
            assert_eq!(
                quarantines
                    .quarantine_remaining(VoteKind::Grant, seen, Some(10 * S))
                    .map(|it| it.0),
                Some(7 * S)
            );
        }
    }
}
