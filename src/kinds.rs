//! Lock kinds: descriptions that return guards. A kind is its commands, as data. Rounds, renewal
//! and guards are written once, below, and the common methods in `methods`.

pub(crate) mod methods;
mod multi;
mod mutex;
mod reentrant;
mod rw_lock;
mod semaphore;

pub use multi::MultiLock;
pub use mutex::Mutex;
pub use reentrant::{ReentrantGuard, ReentrantMutex};
pub use rw_lock::RwLock;
pub use semaphore::{Permit, Semaphore};
