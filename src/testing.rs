//! Stand-ins for servers, for tests of programs that take locks.
//!
//! What does your program do when the lock is held, slow, refused or lost? [`Nodes`] are servers in the process of the test:
//! up within milliseconds, and with faults on demand. A real [`LockManager`](crate::LockManager) connects to them, so
//! connections, time-outs, waiting, renewal and guards are those that you ship.
//!
//! ```
//! use quorlock::testing::Nodes;
//!
//! let nodes = Nodes::start(3)?;
//! let locks = nodes.manager().build()?;
//!
//! let other = nodes.hold("report").unwrap(); // somebody else has it
//! assert!(locks.mutex("report").try_lock().unwrap_err().is_held());
//!
//! drop(other);
//! nodes[0].down(); // one of three does not matter
//! assert!(locks.mutex("report").try_lock()?.is_valid());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the crate's feature `testing`, for `[dev-dependencies]`. The page [`guide::testing`](crate::guide::testing) has recipes,
//! and says what such a test proves and what it does not.

pub(crate) mod bytes;
#[cfg(feature = "testing")]
mod nodes;
#[cfg(feature = "testing")]
mod refusal;
#[cfg(feature = "testing")]
mod serial;
#[cfg(feature = "testing")]
mod server;
#[cfg(feature = "testing")]
mod servers;
pub(crate) mod store;

#[cfg(feature = "testing")]
pub use nodes::{Hold, Node, Nodes};
#[cfg(feature = "testing")]
pub use refusal::Refusal;
#[cfg(feature = "testing")]
pub use serial::{Serial, serial};
#[cfg(feature = "testing")]
pub use servers::{Holder, NotStandIns};
