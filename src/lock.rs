//! One acquisition and one hold, written once for all lock kinds.

mod acquire;
mod guard;

pub(crate) use acquire::{Patience, Request};
pub use guard::LockGuard;
