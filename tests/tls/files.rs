//! Certificates that are renewed where they lie.

use std::fs;
use std::path::PathBuf;

use devnodes::eventually;
use devnodes::tls::{Authority, Certificate};
use quorlock::Tls;
use quorlock::error::TlsFailure;
use tempfile::TempDir;

use crate::support::*;

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    fn write_client(&self, certificate: &Certificate) {
        self.write("client.pem", &certificate.chain);
        self.write("client.key", &certificate.key);
    }

    fn tls(&self) -> Tls {
        Tls::with_ca_file(self.at("ca.pem"))
            .client_cert_files(self.at("client.pem"), self.at("client.key"))
    }
}

#[test]
fn a_client_certificate_that_is_renewed_is_shown_by_the_next_connection() -> TestResult {
    let (nodes, files, stranger) = (Secured::start(3), Files::new(), Authority::generate());
    nodes.ask_for_certificates();
    files.write("ca.pem", nodes.authority.pem());
    files.write_client(&stranger.certify(&["client"]));
    let locks = patient(nodes.urls()).tls(files.tls()).build()?;

    let refused = tls_failure(&locks, 0);
    let is_refused = matches!(refused, TlsFailure::CertificateRefused { .. });
    assert!(is_refused, "{refused:?}");
    files.write_client(&nodes.authority.certify(&["client"]));

    let guard = lock_in_the_end(&locks, "report");
    guard.release()?;
    Ok(())
}

#[test]
fn an_authority_that_is_replaced_is_trusted_by_the_next_connection() -> TestResult {
    let (nodes, files, next) = (Secured::start(3), Files::new(), Authority::generate());
    files.write("ca.pem", nodes.authority.pem());
    let locks = patient(nodes.urls())
        .tls(Tls::with_ca_file(files.at("ca.pem")))
        .build()?;
    drop(lock_in_the_end(&locks, "report"));

    nodes
        .fronts
        .iter()
        .for_each(|it| it.set_certificate(&right(&next), None));
    nodes.fronts.iter().for_each(|it| it.cut());
    // On a busy machine the cut may hit a new connection first.
    eventually("the new authority is unknown", || {
        tls_failure(&locks, 0) == TlsFailure::UnknownIssuer
    });
    files.write("ca.pem", next.pem());

    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

#[test]
fn unreadable_tls_files_leave_the_last_valid_ones_in_use() -> TestResult {
    let (nodes, files) = (Secured::start(3), Files::new());
    nodes.ask_for_certificates();
    files.write("ca.pem", nodes.authority.pem());
    files.write_client(&nodes.authority.certify(&["client"]));
    let locks = patient(nodes.urls()).tls(files.tls()).build()?;
    drop(lock_in_the_end(&locks, "report"));
    (0..3).for_each(|it| comes_up(&locks, it));

    let breaks: [&dyn Fn(); 3] = [
        &|| files.write("client.key", "-----BEGIN PRIVATE KEY-----\nhalf"),
        // A certificate of another key.
        &|| files.write("client.pem", &nodes.authority.certify(&["client"]).chain),
        &|| fs::remove_file(files.at("ca.pem")).unwrap(),
    ];
    for (round, break_files) in breaks.iter().enumerate() {
        break_files();
        nodes.reconnect(&locks, round + 2);
        (0..3).for_each(|it| comes_up(&locks, it));
    }
    Ok(())
}
