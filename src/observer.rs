//! What a manager tells a program that watches it.

mod event;
mod hold;
mod upcall;

pub use event::{Event, ObservedLock, Observer, RoundOutcome};
pub use hold::Hold;
pub(crate) use upcall::Upcall;
