//! Time that a test adds to that of the managers which it has made for itself: see `testing::Nodes::advance`.
//!
//! A thread is ahead of the clocks by as much as the manager for which it works: the manager's own threads all the time, and
//! a thread of the program while it is in a call. So two managers of one process can be ahead by different times.
//!
//! Without the feature `testing` there is nothing of this.

#[cfg(not(feature = "testing"))]
mod absent;
#[cfg(feature = "testing")]
mod added;

#[cfg(not(feature = "testing"))]
pub(crate) use absent::{Ahead, Entered, UnderWay, added, here};
#[cfg(feature = "testing")]
pub(crate) use added::{Ahead, Entered, OnAdvance, UnderWay, added, here};
