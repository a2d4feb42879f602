//! Events for metrics, traces and records of your own: see [`Builder::observer`](crate::Builder::observer).

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
