//! TLS failures in our words.

use std::fmt;
use std::sync::Arc;

use rustls::{AlertDescription, CertificateError, Error};

use crate::error::TlsFailure;

/// Longest quoted text, in characters.
const SHOWN_MAX: usize = 160;

/// `expected`: the expected name. `shows_certificate`: whether we have a client certificate.
pub(super) fn of(err: Error, expected: &Arc<str>, shows_certificate: bool) -> TlsFailure {
    match err {
        Error::InvalidCertificate(err) => of_certificate(err, expected),
        Error::NoCertificatesPresented => TlsFailure::BadCertificate {
            reason: "it has sent none; see its TLS settings".to_owned(),
        },
        Error::AlertReceived(alert) => of_alert(alert, shows_certificate),
        err => TlsFailure::Protocol {
            reason: in_words(&err),
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
        // The second: a new authority of the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            TlsFailure::UnknownIssuer
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            // `DnsName("a.example")` is `DNS:a.example` in the files of certificates.
            let name = |name: &String| {
                name.replace("DnsName(\"", "DNS:")
                    .replace("IpAddress(", "IP:")
            };
            let names: Vec<_> = presented.iter().map(name).collect();
            mismatch(shown(&names.join(", ").replace(['"', ')'], "")))
        }
        err => TlsFailure::BadCertificate {
            reason: reason(&err),
        },
    }
}

/// The problem of a certificate, and what to do.
fn reason(err: &CertificateError) -> String {
    let text = err.to_string();
    match text
        .trim_start_matches("Other(OtherError(")
        .trim_end_matches(')')
    {
        "CaUsedAsEndEntity" => {
            "it is that of an authority (CA:TRUE); sign one for the server with it, \
             and keep it as the CA file"
        }
        "UnsupportedCertVersion" => {
            "it is of X.509 version 1; sign it with subjectAltName, which makes \
             it version 3"
        }
        text => return in_words(&text),
    }
    .to_owned()
}

/// Text of a rustls error, with names of variants as words: `BadEncoding` is `bad encoding`.
/// Without their fields.
pub(super) fn in_words(err: &impl fmt::Display) -> String {
    let mut words = String::new();
    for it in err.to_string().chars().take_while(|it| *it != '{') {
        if it.is_ascii_uppercase() && words.ends_with(|it: char| it.is_ascii_lowercase()) {
            words.push(' ');
        }
        words.push(it);
    }
    shown(words.trim_end()).to_lowercase()
}

fn of_alert(alert: AlertDescription, shows_certificate: bool) -> TlsFailure {
    let name = || match alert {
        AlertDescription::Unknown(number) => format!("alert {number}"),
        alert => in_words(&format_args!("{alert:?}")),
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
