//! Stand-ins for Redis servers, to test programs that take locks with [`quorlock`].
//!
//! What does your program do when the lock is held, slow, refused or lost? [`Nodes`] are servers in
//! the process of the test: up within milliseconds, and with faults on demand. A real
//! [`LockManager`](quorlock::LockManager) connects to them, so connections, time-outs, waiting,
//! renewal and guards are those that you ship. They run the scripts that servers run.
//!
//! ```
//! use quorlock_testing::Nodes;
//!
//! let nodes = Nodes::start(3);
//! let locks = nodes.manager().build()?;
//!
//! let other = nodes.hold("report"); // somebody else has it
//! assert!(locks.mutex("report").try_lock().unwrap_err().is_held());
//!
//! drop(other);
//! nodes[0].down(); // one of three does not matter
//! assert!(locks.mutex("report").try_lock()?.is_valid());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! For `[dev-dependencies]`. It needs a C compiler, for an embedded Lua. The page
//! [`quorlock::guide::testing`] has recipes, and lists what such a test proves and what it does
//! not.

mod node;
mod nodes;
mod refusal;
#[doc(hidden)]
#[allow(missing_docs, reason = "for tests of quorlock itself")]
pub mod resp;
mod server;
#[doc(hidden)]
#[allow(missing_docs, reason = "for tests of quorlock itself")]
pub mod store;

pub use node::Node;
pub use nodes::{Hold, Holder, Nodes};
pub use refusal::Refusal;
#[doc(hidden)]
pub use server::serve;
