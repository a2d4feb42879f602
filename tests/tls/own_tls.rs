//! Servers that speak TLS themselves, which is OpenSSL's, where the server at hand was built with it.

use std::fs;

use devnodes::tls::Authority;
use devnodes::{Server, eventually};
use quorlock::{LockManager, NodeFailure, Tls, TlsFailure};
use tempfile::TempDir;

use crate::support::*;

/// A server with a TLS port beside the other one, and the folder of its certificates. `None` if it was built without TLS.
fn start(authority: &Authority, asks_for_ours: bool) -> Option<(Server, TempDir, String)> {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let certificate = right(authority);
    let (chain, key) = (write("server.pem", &certificate.chain), write("server.key", &certificate.key));
    let ca = write("ca.pem", authority.pem());
    for _ in 0..20 {
        // Somebody else may take it first.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Server::builder()
            .arg("--tls-port", &port.to_string())
            .arg("--tls-cert-file", &chain)
            .arg("--tls-key-file", &key)
            .arg("--tls-ca-cert-file", &ca)
            .arg("--tls-auth-clients", if asks_for_ours { "yes" } else { "no" })
            .start();
        match server {
            Ok(server) => return Some((server, folder, format!("127.0.0.1:{port}"))),
            Err(err) if err.to_string().contains("in use") => {}
            Err(err) => {
                eprintln!("left out, as the server has no TLS of its own: {err}");
                return None;
            }
        }
    }
    panic!("20 ports in a row were taken");
}

#[test]
fn a_server_with_tls_of_its_own_grants_locks() -> TestResult {
    let authority = Authority::generate();
    let Some((server, _files, address)) = start(&authority, false) else { return Ok(()) };
    let locks = patient(&[format!("rediss://{address}")]).tls(Tls::with_ca_pem(authority.pem())).build()?;

    for turn in 0..50 {
        let guard = locks.mutex(format!("report-{turn}")).lock()?;
        guard.extend(LONG)?;
        guard.release()?;
    }

    // The next connection goes on with the session of this one.
    server.command(&["CLIENT", "KILL", "TYPE", "normal"])?;
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

#[test]
fn a_server_with_tls_of_its_own_that_wants_a_certificate_gets_one() -> TestResult {
    let (authority, stranger) = (Authority::generate(), Authority::generate());
    let Some((_server, _files, address)) = start(&authority, true) else { return Ok(()) };
    let url = [format!("rediss://{address}")];
    let trusting = || Tls::with_ca_pem(authority.pem());
    let showing = |it: &Authority| {
        let certificate = it.certify(&["client"]);
        trusting().client_cert_pem(certificate.chain, certificate.key)
    };

    let failure = tls_failure(&patient(&url).tls(trusting()).build()?, 0);
    assert_eq!(failure, TlsFailure::CertificateRequired);
    let failure = tls_failure(&patient(&url).tls(showing(&stranger)).build()?, 0);
    assert!(matches!(failure, TlsFailure::CertificateRefused { .. }), "{failure:?}");
    let locks = patient(&url).tls(showing(&authority)).build()?;
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

/// It closes such a connection without a word.
#[test]
fn an_address_without_tls_of_a_port_with_it_says_what_that_may_be() -> TestResult {
    let authority = Authority::generate();
    let Some((_server, _files, address)) = start(&authority, false) else { return Ok(()) };
    let locks = LockManager::builder([format!("redis://{address}")]).build()?;
    let mut failure = None;

    eventually("the node fails", || {
        failure = locks.check_nodes().swap_remove(0).failure;
        matches!(failure, Some(NodeFailure::Disconnected { .. }))
    });

    let said = failure.unwrap().to_string();
    assert!(said.ends_with("before it answered; if its port speaks TLS, the address begins with rediss://"), "{said}");
    Ok(())
}
