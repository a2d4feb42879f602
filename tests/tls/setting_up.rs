//! What `build` says about TLS, and what is never shown.

use devnodes::debug_form;
use devnodes::tls::Authority;
use quorlock::Node;
use quorlock::error::BuildProblem;
use quorlock::{Builder, LockManager, Tls};

use crate::support::*;

/// What is wrong with the TLS of the builder.
#[track_caller]
fn problem(builder: Builder) -> String {
    let err = builder.build().unwrap_err();
    let [BuildProblem::Tls { reason }] = err.problems() else {
        panic!("{err:?}")
    };
    assert!(err.to_string().contains(reason));
    reason.clone()
}

#[test]
fn unusable_tls_files_are_build_errors_with_path_and_reason() -> TestResult {
    let ca = Authority::generate();
    let [one, other] = [(); 2].map(|()| ca.certify(&["client"]));
    let damaged = ca.pem().replace("-----END", "-----AND");
    let rubbish = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let secured = |tls| LockManager::builder(["rediss://10.0.0.1"]).tls(tls);
    let trusting = || Tls::with_ca_pem(ca.pem());

    for (builder, words) in [
        (
            secured(Tls::with_ca_file("no/such/ca.pem")),
            "node 0: no/such/ca.pem: no such file or directory",
        ),
        (
            secured(Tls::with_ca_pem("nothing")),
            "the certificate authorities: there is no certificate in it",
        ),
        (
            secured(trusting().client_cert_files("no.pem", "no.key")),
            "no.pem: no such file",
        ),
        (
            secured(trusting().client_cert_pem(one.chain.clone(), "no key")),
            "the client's key: there is no key in it",
        ),
        (
            secured(trusting().client_cert_pem("none", one.key.clone())),
            "the client certificate: there is no certificate",
        ),
        (
            secured(trusting().client_cert_pem(one.chain.clone(), other.key.clone())),
            "client certificate and key: keys may not be consistent: key mismatch",
        ),
        (secured(Tls::with_ca_pem(damaged)), "damaged"),
        (secured(Tls::with_ca_pem(rubbish)), "bad encoding"),
        (
            secured(trusting().server_name("not a name")),
            "\"not a name\" is no name that a certificate can be for",
        ),
        (
            LockManager::builder(["redis://10.0.0.1"]).tls(trusting()),
            "no URL begins with rediss://",
        ),
        (
            LockManager::builder([
                "rediss://10.0.0.1".into(),
                Node::url("redis://10.0.0.2").tls(trusting()),
            ]),
            "set up for node 1, whose URL does not begin with rediss://",
        ),
        (
            LockManager::builder(Node::url("rediss://10.0.0.1").sentinel_tls(trusting())),
            "it is set up for the Sentinels of node 0, which has none that speak TLS",
        ),
        (
            LockManager::builder(
                Node::url("rediss+sentinel://s1,s2,s3/locks?sentinel_tls=no")
                    .sentinel_tls(trusting()),
            ),
            "it is set up for the Sentinels of node 0, which has none that speak TLS",
        ),
        (
            LockManager::builder(
                Node::url("rediss+sentinel://s1,s2,s3/locks")
                    .tls(trusting())
                    .sentinel_tls(Tls::with_ca_pem("")),
            ),
            "node 0: the certificate authorities: there is no certificate in it",
        ),
        (
            LockManager::builder(["rediss+replicated://10.0.0.1,no_name-/0"]).tls(trusting()),
            "\"no_name-\" is no name that a certificate can be for",
        ),
    ] {
        let reason = problem(builder);
        assert!(reason.contains(words), "{reason}");
        assert_eq!(debug_form(&reason), None, "{reason}");
        assert!(
            !reason.contains(&one.key) && !reason.contains("no key in it: no key"),
            "{reason}"
        );
    }
    Ok(())
}

#[test]
fn keys_are_in_no_debug_form() {
    let certificate = Authority::generate().certify(&["client"]);
    let tls = Tls::with_ca_pem("ca").client_cert_pem(certificate.chain, certificate.key.clone());
    let bytes = |text: &str| {
        format!("{:?}", text.as_bytes())
            .trim_matches(['[', ']'])
            .to_owned()
    };
    let builder = LockManager::builder(["rediss://10.0.0.1"]).tls(tls.clone());

    for shown in [
        format!("{tls:?}"),
        format!("{builder:?}"),
        format!("{builder:#?}"),
    ] {
        assert!(
            !shown.contains("PRIVATE KEY") && !shown.contains(&bytes(&certificate.key[..40])),
            "{shown}"
        );
        assert!(shown.contains("PEM"));
    }
}

#[test]
fn addresses_with_tls_are_the_same_servers_as_those_without() {
    let err = LockManager::builder(["rediss://10.0.0.1", "redis://10.0.0.1"])
        .build()
        .unwrap_err();

    let is_double = matches!(err.problems(), [BuildProblem::DuplicateNode { .. }]);
    assert!(is_double, "{err:?}");
}
