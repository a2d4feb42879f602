//! Events for metrics, traces and records of your own: see [`Builder::observer`](crate::Builder::observer).

mod event;
#[cfg(feature = "metrics")]
mod metrics;
mod upcall;

pub use event::{Event, HeldLock, ObservedLock, Observer, RoundOutcome};
#[cfg(feature = "metrics")]
pub use metrics::MetricsObserver;
pub(crate) use upcall::Upcall;
