//! Events for metrics, traces and records of your own: see
//! [`Builder::observer`](crate::Builder::observer).

mod event;
mod journal;
#[cfg(feature = "metrics")]
mod metrics;

pub use event::{Event, HeldLock, ObservedLock, Observer};
pub(crate) use journal::{Journal, UserObserver};
#[cfg(feature = "metrics")]
pub use metrics::MetricsObserver;
