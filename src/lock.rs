//! One acquisition and one hold, written once for all lock kinds.

mod acquire;
mod guard;

pub(crate) use acquire::{Patience, acquire};
pub use guard::LockGuard;
