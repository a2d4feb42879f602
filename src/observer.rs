//! What a manager tells a program that watches it.

mod event;
mod hold;
#[cfg(feature = "metrics")]
mod metrics;
mod upcall;

pub use event::{Event, ObservedLock, Observer, RoundOutcome};
pub use hold::Hold;
#[cfg(feature = "metrics")]
pub use metrics::MetricsObserver;
pub(crate) use upcall::Upcall;
