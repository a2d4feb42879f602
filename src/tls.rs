//! TLS: options in, secured sockets out. No thread; it reads files.
//!
//! Only this module names `rustls`. Without the feature `tls` it has stand-ins without values, so
//! that callers need no conditions.

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
mod stream;

#[cfg(not(feature = "tls"))]
pub(crate) use absent::Setup;
#[cfg(feature = "tls")]
pub use options::Tls;
#[cfg(feature = "tls")]
pub(crate) use setup::{Setup, SystemRoots};
pub(crate) use stream::Stream;
