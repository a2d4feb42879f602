//! How long a server has no vote that has lost its data: the longest quarantine that any program needs, as far as is known.
//!
//! What such a server has lost was granted for the ttl of *its* holder, which may be longer than ours. So every program's
//! greeting raises the number in every server's record, and brings what other servers have shown to a server that may have
//! lost it. Only an operator lowers the number.

use std::time::Duration;

use crate::logic::lease;

/// No program needs more: twice the longest ttl that is allowed. A larger number in a record counts as this.
pub(crate) const QUARANTINE_MAX: Duration = Duration::from_secs(2 * 60 * 60);

/// The longest quarantine that we need, and what each node's record has shown last: milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct QuarantineLength {
    own: u64,
    shown: Vec<u64>,
}

impl QuarantineLength {
    pub(crate) fn new(own: u64, nodes: usize) -> QuarantineLength {
        QuarantineLength {
            own,
            shown: vec![0; nodes],
        }
    }

    pub(crate) fn on_report(&mut self, node: usize, millis: u64) {
        if let Some(last) = self.shown.get_mut(node) {
            *last = millis.min(lease::millis(QUARANTINE_MAX));
        }
    }

    /// The longest that any program needs: how long every server has no vote that has lost its data.
    pub(crate) fn quarantine_length(&self) -> Duration {
        Duration::from_millis(self.own.max(self.largest()))
    }

    /// What a node has shown last; 0 before it has.
    pub(crate) fn shown_by(&self, node: usize) -> u64 {
        self.shown.get(node).copied().unwrap_or(0)
    }

    /// What the nodes have shown, at most.
    pub(crate) fn largest(&self) -> u64 {
        self.shown.iter().copied().max().unwrap_or(0)
    }

    pub(crate) fn own(&self) -> u64 {
        self.own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h15_the_longest_quarantine_that_any_node_shows_is_that_of_all() {
        let mut length = QuarantineLength::new(1_000, 3);
        assert_eq!(
            (length.quarantine_length().as_millis(), length.largest()),
            (1_000, 0)
        );
        length.on_report(0, 1_000);
        assert_eq!(
            (length.shown_by(0), length.shown_by(1), length.shown_by(9)),
            (1_000, 0, 0)
        );

        length.on_report(1, 30_000);
        length.on_report(9, 99_000);
        assert_eq!(
            (length.quarantine_length().as_millis(), length.largest()),
            (30_000, 30_000),
            "there is no ninth"
        );
        length.on_report(1, 500);
        assert_eq!(
            (length.quarantine_length().as_millis(), length.largest()),
            (1_000, 1_000),
            "an operator lowered it"
        );
        length.on_report(2, u64::MAX);
        assert_eq!(
            (length.quarantine_length().as_secs(), length.own()),
            (7_200, 1_000),
            "nobody needs more"
        );
    }
}
