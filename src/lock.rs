//! One acquisition and one hold, written once for all lock kinds.

mod acquire;
mod hold;
mod rw_guards;
mod together;

pub(crate) use acquire::{Patience, acquire};
pub use hold::{Hold, LockGuard};
pub use rw_guards::{ReadGuard, WriteGuard};
pub use together::release_all;
