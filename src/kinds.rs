//! Lock kinds: descriptions that users make guards from. A kind is a plan of commands, as data; rounds, renewal and
//! guards are written once, below.

mod mutex;

pub use mutex::Mutex;
