//! What a manager tells a program that watches it.

mod event;
mod upcall;

pub use event::{Event, ObservedLock, Observer, RoundOutcome};
pub(crate) use upcall::Upcall;
