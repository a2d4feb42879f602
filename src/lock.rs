//! One acquisition and one hold, written once for all lock kinds.

mod acquire;
mod guard;
mod hold;
mod rw_guards;
mod together;

pub(crate) use acquire::{Patience, acquire};
pub use guard::LockGuard;
pub use hold::Hold;
pub use rw_guards::{ReadGuard, WriteGuard};
pub use together::release_all;
