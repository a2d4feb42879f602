//! What a manager tells a program that watches it.

mod event;
mod held_lock;
#[cfg(feature = "metrics")]
mod metrics;
mod upcall;

pub use event::{Event, ObservedLock, Observer, RoundOutcome};
pub use held_lock::HeldLock;
#[cfg(feature = "metrics")]
pub use metrics::MetricsObserver;
pub(crate) use upcall::Upcall;
