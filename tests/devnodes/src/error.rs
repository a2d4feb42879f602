//! The one error of this crate: a sentence for the reader of a failed test.

use std::fmt;

/// Why a test server could not be found, started or asked.
///
/// `Debug` prints the same text as `Display`, because tests show it through `unwrap`.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    message: String,
}

impl Error {
    /// With these words.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }

    /// Whether the server was asked for TLS and was built without.
    pub fn is_no_tls(&self) -> bool {
        // As Redis and as Valkey say it.
        self.message.contains("Bad directive") && self.message.contains("tls-")
            || self.message.contains("connection type tls")
    }

    /// Puts what was being tried before what went wrong.
    pub(crate) fn of(trying: impl fmt::Display, cause: impl fmt::Display) -> Self {
        Self::new(format!("{trying}: {cause}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
