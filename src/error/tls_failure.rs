//! Why a connection is not secured.

use std::sync::Arc;

use thiserror::Error;

/// Why TLS with a node with a `rediss://` address failed, or why a node without one requires TLS,
/// and what to do.
///
/// Before the certificate is accepted nothing is sent to the node: no password, no name of a lock.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TlsFailure {
    /// The server answered without TLS. A Redis Cluster before 7.2 without `tls-cluster yes` names
    /// ports without TLS for its primaries.
    #[error("answered without TLS: give its TLS port, or write redis:// if it has none")]
    NotTls,
    /// The server requires TLS, and the address has none.
    #[error("its port speaks TLS: write rediss:// instead of redis://")]
    SpeaksTls,
    /// The connection was accepted, but the handshake did not end within the [connect
    /// timeout](crate::Builder::connect_timeout).
    #[error("no answer to the TLS handshake in time")]
    NoAnswer,
    /// The server closed the connection in the handshake, without a reason.
    #[error("closed in the TLS handshake: {reason}; see the server's log")]
    Closed {
        /// Message of the system.
        reason: String,
    },
    /// The server's certificate has expired; or this machine's clock is wrong.
    #[error("its certificate has expired: renew it, or correct this machine's clock")]
    Expired,
    /// The server's certificate is not valid yet; or this machine's clock is wrong.
    #[error("its certificate is not valid yet: correct this machine's clock, or wait")]
    NotYetValid,
    /// The server's certificate is not from a trusted authority.
    #[error(
        "its certificate is from an unknown authority: trust that authority, or give its CA file"
    )]
    UnknownIssuer,
    /// The server's certificate is for another name.
    #[error(
        "its certificate is for {} and not for {expected}: give its name in the address, set the \
         server name, or sign it with subjectAltName=DNS:name or, for an address, IP:address",
        if presented.is_empty() { "no name" } else { presented }
    )]
    NameMismatch {
        /// The expected name: that of the address, or of `Tls::server_name`.
        expected: Arc<str>,
        /// The names in the certificate's `subjectAltName`, as in `DNS:a.example, IP:10.0.0.1`: cut
        /// and escaped.
        presented: String,
    },
    /// The server's certificate cannot be used for another reason.
    #[error("its certificate cannot be used: {reason}")]
    BadCertificate {
        /// The problem; behind a semicolon, what to do.
        reason: String,
    },
    /// The server requires a client certificate, and none was given.
    #[error("a client certificate is required, and none was given: give one, with its key")]
    CertificateRequired,
    /// The server has refused our certificate.
    #[error(
        "it refuses our client certificate ({alert}): see that it is valid, and signed by an \
         authority that the server knows"
    )]
    CertificateRefused {
        /// Name of the alert.
        alert: String,
    },
    /// The server has ended the connection with an alert.
    #[error("it ended the TLS connection with an alert: {alert}; see the server's log")]
    Alert {
        /// Its name.
        alert: String,
    },
    /// A certificate, key or list of authorities of ours cannot be used.
    #[error("cannot use our own certificates: {reason}")]
    OwnFiles {
        /// The file and its problem.
        reason: String,
    },
    /// The server violated TLS, or both sides have no version or cipher in common.
    #[error("no TLS that we understand: {reason}")]
    Protocol {
        /// The violation.
        reason: String,
    },
}

impl TlsFailure {
    /// Whether it lasts until somebody changes something.
    pub(super) fn needs_somebody(&self) -> bool {
        !matches!(
            self,
            TlsFailure::NoAnswer | TlsFailure::Closed { .. } | TlsFailure::Alert { .. }
        )
    }
}
