//! Advice after a failed acquisition.

use crate::error::{AcquireError, ErrorKind, NodeAnswer, NodeFailure, NodeReport};
use crate::logic::ballot::quorum;

impl AcquireError {
    /// What to do about it: try again, give up, or tell somebody.
    ///
    /// # Examples
    ///
    /// ```
    /// use quorlock::{ErrorKind, LockManager};
    ///
    /// fn nightly(locks: &LockManager) -> Result<(), quorlock::AcquireError> {
    ///     match locks.mutex("nightly-report").try_lock() {
    ///         Ok(_guard) => println!("writing the report"),
    ///         Err(err) => match err.kind() {
    ///             ErrorKind::Yield => println!("another machine writes it"),
    ///             ErrorKind::Retry | ErrorKind::Wait => println!("try again in a minute: {err}"),
    ///             _ => return Err(err),
    ///         },
    ///     }
    ///     Ok(())
    /// }
    /// # nightly(&quorlock_testing::Nodes::start(3).manager().build().unwrap()).unwrap();
    /// ```
    #[must_use]
    #[doc(alias("is_retryable", "is_transient"))]
    pub fn kind(&self) -> ErrorKind {
        match self {
            AcquireError::Held { .. } => ErrorKind::Yield,
            AcquireError::NoQuorum { nodes, .. } => kind_without_quorum(nodes),
            AcquireError::Busy { .. } | AcquireError::TooLate { .. } => ErrorKind::Retry,
            AcquireError::Cancelled | AcquireError::ShutDown => ErrorKind::Stop,
            AcquireError::KeyInUse { .. }
            | AcquireError::NameTooLong { .. }
            | AcquireError::NoNames
            | AcquireError::TooManyNames { .. }
            | AcquireError::BadPermits { .. }
            | AcquireError::NameReserved
            | AcquireError::BadTtl(_) => ErrorKind::Fix,
            AcquireError::Forked
            | AcquireError::HoldLost { .. }
            | AcquireError::ThreadEnding
            | AcquireError::NoRandomness { .. } => ErrorKind::Report,
        }
    }
}

/// The smallest change that would allow a quorum.
fn kind_without_quorum(nodes: &[NodeReport]) -> ErrorKind {
    let count = |what: fn(&NodeFailure) -> bool| {
        nodes
            .iter()
            .filter(|node| matches!(&node.answer, NodeAnswer::Failed(failure) if what(failure)))
            .count()
    };
    let spare = nodes.len().saturating_sub(quorum(nodes.len()));
    if spare < count(NodeFailure::needs_somebody) {
        ErrorKind::Fix
    } else if spare < count(|failure| !matches!(failure, NodeFailure::Quarantined { .. })) {
        ErrorKind::Retry
    } else if spare < count(|_| true) {
        ErrorKind::Wait
    } else {
        ErrorKind::Retry
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::error::QuarantineReason;
    use crate::ids::{LockName, NodeId};

    fn without_quorum(answers: [NodeAnswer; 3]) -> ErrorKind {
        let row = |(index, answer)| NodeReport {
            node: NodeId::new(index),
            address: Arc::from("host:1"),
            answer,
        };
        let nodes = (0..3).zip(answers).map(row).collect();
        AcquireError::NoQuorum {
            name: LockName::new(b"x"),
            nodes,
            waited: Duration::ZERO,
        }
        .kind()
    }

    #[test]
    fn the_error_kind_is_the_smallest_necessary_change() {
        let failed = NodeAnswer::Failed;
        let granted = || NodeAnswer::Granted;
        let new = || {
            failed(NodeFailure::Quarantined {
                left: Duration::ZERO,
                why: QuarantineReason::New,
            })
        };
        let late = || failed(NodeFailure::TimedOut);
        let refused = || failed(NodeFailure::WRONG_PASSWORD);
        assert_eq!(without_quorum([granted(), new(), new()]), ErrorKind::Wait);
        assert_eq!(without_quorum([late(), new(), new()]), ErrorKind::Wait);
        assert_eq!(without_quorum([late(), late(), new()]), ErrorKind::Retry);
        assert_eq!(
            without_quorum([refused(), refused(), new()]),
            ErrorKind::Fix
        );
        assert_eq!(
            without_quorum([refused(), late(), granted()]),
            ErrorKind::Retry
        );
        assert_eq!(
            without_quorum([granted(), granted(), late()]),
            ErrorKind::Retry
        );
    }
}
