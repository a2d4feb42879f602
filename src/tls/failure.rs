//! What went wrong in TLS, in our words.

use std::sync::Arc;

use rustls::{AlertDescription, CertificateError, Error};

use crate::error::TlsFailure;

/// So much of the names in a certificate is shown.
const SHOWN_MAX: usize = 160;

/// `expected`: the name that was asked for. `shows_certificate`: whether we had one to show.
pub(super) fn of(err: Error, expected: &Arc<str>, shows_certificate: bool) -> TlsFailure {
    match err {
        Error::InvalidCertificate(err) => of_certificate(err, expected),
        Error::NoCertificatesPresented => TlsFailure::BadCertificate {
            reason: "it has shown none".to_owned(),
        },
        Error::AlertReceived(alert) => of_alert(alert, shows_certificate),
        err => TlsFailure::Protocol {
            reason: shown(&err.to_string()),
        },
    }
}

fn of_certificate(err: CertificateError, expected: &Arc<str>) -> TlsFailure {
    let mismatch = |presented| TlsFailure::NameMismatch {
        expected: Arc::clone(expected),
        presented,
    };
    match err {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsFailure::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsFailure::NotYetValid
        }
        // The second: an authority of the same name, as a new one often has.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            TlsFailure::UnknownIssuer
        }
        CertificateError::NotValidForName => mismatch("others".to_owned()),
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            mismatch("any: it names none".to_owned())
        }
        CertificateError::NotValidForNameContext { presented, .. } => mismatch(shown(
            &presented
                .iter()
                .map(|it| plain_name(it))
                .collect::<Vec<_>>()
                .join(", "),
        )),
        err => TlsFailure::BadCertificate {
            reason: shown(&err.to_string()),
        },
    }
}

/// `DnsName("a.example")` is `a.example` to people.
fn plain_name(name: &str) -> &str {
    let inside = name
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'))
        .unwrap_or(name);
    inside.trim_matches('"')
}

fn of_alert(alert: AlertDescription, shows_certificate: bool) -> TlsFailure {
    let name = || match alert {
        AlertDescription::Unknown(number) => format!("alert {number}"),
        alert => format!("{alert:?}"),
    };
    match alert {
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
            TlsFailure::CertificateRequired
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        | AlertDescription::AccessDenied
        | AlertDescription::DecryptError
            if shows_certificate =>
        {
            TlsFailure::CertificateRefused { alert: name() }
        }
        _ => TlsFailure::Alert { alert: name() },
    }
}

fn shown(text: &str) -> String {
    text.chars()
        .flat_map(char::escape_debug)
        .take(SHOWN_MAX)
        .collect()
}
