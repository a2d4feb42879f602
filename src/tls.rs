//! What secures a connection: options in, ciphertext in and out. It has no socket and no thread; it reads files.
//!
//! Only this room names `rustls`. Without the feature `tls` there are stand-ins of which no value can exist, so that nothing
//! else has to ask.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod failure;
#[cfg(feature = "tls")]
mod options;
#[cfg(feature = "tls")]
mod session;
#[cfg(feature = "tls")]
mod setup;

#[cfg(not(feature = "tls"))]
pub(crate) use absent::{Session, Setup};
#[cfg(feature = "tls")]
pub use options::Tls;
#[cfg(feature = "tls")]
pub(crate) use session::Session;
#[cfg(feature = "tls")]
pub(crate) use setup::{Setup, SystemRoots};
