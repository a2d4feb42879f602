//! Lock kinds: descriptions that users make guards from. A kind is a plan of commands, as data; rounds, renewal and
//! guards are written once, below, and the methods that kinds have in common in `methods`.

mod methods;
mod mutex;
mod reentrant;
mod several;

pub use mutex::Mutex;
pub use reentrant::{ReentrantGuard, ReentrantMutex};
pub use several::MultiLock;
