//! One acquisition and one hold, written once for all lock kinds.

mod acquire;
mod guard;
mod rw_guards;
mod together;

pub(crate) use acquire::{Patience, acquire};
pub use guard::LockGuard;
pub use rw_guards::{ReadGuard, WriteGuard};
pub(crate) use together::GiveBack;
pub use together::{Guard, release_all};
