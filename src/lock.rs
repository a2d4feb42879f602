//! One acquisition and one hold, written once for all lock kinds.

mod acquire;
mod hold;
mod rw_guards;

pub(crate) use crate::engine::WaitLimit;
pub(crate) use acquire::acquire;
pub(crate) use hold::contains;
pub use hold::{Hold, LockGuard};
pub use rw_guards::{ReadGuard, WriteGuard};
