//! One acquisition and one hold, written once for all lock kinds.

mod acquire;
mod guard;
mod rw_guards;

pub(crate) use acquire::{Patience, acquire};
pub use guard::LockGuard;
pub use rw_guards::{ReadGuard, WriteGuard};
