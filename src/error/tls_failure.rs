//! Why a connection could not be secured, or is not.

use std::sync::Arc;

use thiserror::Error;

/// Why a node with a `rediss://` address could not be talked to, or one without asks for TLS, and what to do about it.
///
/// Nothing is sent to a node whose certificate was not accepted: no password, no name of a lock.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TlsFailure {
    /// The server answered, and not with TLS: a port without it. A Redis Cluster may name such ports of its masters although it was
    /// asked by TLS: before Redis 7.2 it does so unless it has `tls-cluster yes`.
    #[error("answered without TLS: give its TLS port, or write redis:// if it has none")]
    NotTls,
    /// The server speaks TLS, and the address is one without.
    #[error("its port speaks TLS: write rediss:// instead of redis://")]
    SpeaksTls,
    /// The connection was accepted, and the handshake not ended within the [connect timeout](crate::Builder::connect_timeout).
    #[error("no answer to the TLS handshake in time")]
    NoAnswer,
    /// The server closed the connection in the handshake, without a reason.
    #[error("closed in the TLS handshake: {reason}; see the server's log")]
    Closed {
        /// What the system said.
        reason: String,
    },
    /// The server's certificate has expired; or this machine's clock is wrong.
    #[error("its certificate has expired: renew it, or correct this machine's clock")]
    Expired,
    /// The server's certificate is not valid yet; or this machine's clock is wrong.
    #[error("its certificate is not valid yet: correct this machine's clock, or wait")]
    NotYetValid,
    /// The server's certificate was not signed by a certificate authority that is trusted here.
    #[error(
        "its certificate is from an unknown authority: trust that authority, or give its CA file"
    )]
    UnknownIssuer,
    /// The server's certificate is for another name.
    #[error(
        "its certificate is for {} and not for {expected}: give its name in the address, set the server name, or sign it \
         with subjectAltName=DNS:name or, for an address, IP:address",
        if presented.is_empty() { "no name" } else { presented }
    )]
    NameMismatch {
        /// The name that was asked for: that of the address, or of `Tls::server_name`.
        expected: Arc<str>,
        /// The names in the certificate's `subjectAltName`, as in `DNS:a.example, IP:10.0.0.1`: cut and escaped.
        presented: String,
    },
    /// The server's certificate cannot be used for another reason.
    #[error("its certificate cannot be used: {reason}")]
    BadCertificate {
        /// What is wrong with it; and, behind a semicolon, what to do.
        reason: String,
    },
    /// The server wants a certificate of ours, and was given none.
    #[error("a client certificate is required, and none was given: give one, with its key")]
    CertificateRequired,
    /// The server has refused our certificate.
    #[error(
        "it refuses our client certificate ({alert}): see that it is valid, and signed by an authority that the server knows"
    )]
    CertificateRefused {
        /// The name of the alert that it sent.
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
        /// Which file, and what is wrong with it.
        reason: String,
    },
    /// What came is not what TLS allows, or nothing that both sides know.
    #[error("no TLS that we understand: {reason}")]
    Protocol {
        /// What was wrong with it.
        reason: String,
    },
}

impl TlsFailure {
    /// Whether it stays as it is until somebody changes something.
    pub(super) fn needs_somebody(&self) -> bool {
        !matches!(
            self,
            TlsFailure::NoAnswer | TlsFailure::Closed { .. } | TlsFailure::Alert { .. }
        )
    }
}
