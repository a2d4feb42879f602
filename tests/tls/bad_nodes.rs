//! Nodes whose TLS is wrong: each says so in words of its own, and costs the others nothing.

use std::time::Duration;

use devnodes::tls::{Authority, Terminator};
use devnodes::{FakeServer, eventually};
use quorlock::error::{NodeAnswer, NodeFailure, TlsFailure};
use quorlock::{AcquireError, Tls};

use crate::support::*;

/// What is wrong with the first node, and what is said of it.
pub(crate) type Case = (
    &'static str,
    fn(&mut Secured) -> String,
    fn(&TlsFailure) -> bool,
);

pub(crate) const CASES: [Case; 9] = [
    (
        "expired",
        |it| show(it, |it| it.certify_between(&["127.0.0.1"], 2000, 2001)),
        |it| *it == TlsFailure::Expired,
    ),
    (
        "not yet valid",
        |it| show(it, |it| it.certify_between(&["127.0.0.1"], 3000, 4000)),
        |it| *it == TlsFailure::NotYetValid,
    ),
    (
        "another name",
        |it| show(it, |it| it.certify(&["r1.internal", "10.9.8.7"])),
        |it| {
            let TlsFailure::NameMismatch {
                expected,
                presented,
            } = it
            else {
                return false;
            };
            &**expected == "127.0.0.1"
                && presented.contains("r1.internal")
                && presented.contains("10.9.8.7")
        },
    ),
    (
        "another authority",
        |it| show(it, |_| right(&Authority::generate())),
        |it| *it == TlsFailure::UnknownIssuer,
    ),
    (
        "wants a certificate",
        |it| {
            it.fronts[0].set_certificate(&right(&it.authority), Some(&it.authority));
            it.fronts[0].url()
        },
        |it| *it == TlsFailure::CertificateRequired,
    ),
    (
        "without TLS",
        |it| format!("rediss://{}", it.servers[0].addr()),
        |it| *it == TlsFailure::NotTls,
    ),
    (
        "with TLS, and the address without",
        |it| it.fronts[0].url().replace("rediss://", "redis://"),
        |it| *it == TlsFailure::SpeaksTls,
    ),
    (
        "a handshake that hangs",
        |it| {
            it.fronts[0].set_mute(true);
            it.fronts[0].url()
        },
        |it| *it == TlsFailure::NoAnswer,
    ),
    (
        "nobody behind it",
        |it| {
            it.servers[0].kill().unwrap();
            it.fronts[0].url()
        },
        |it| matches!(it, TlsFailure::Closed { .. }),
    ),
];

fn show(nodes: &Secured, make: fn(&Authority) -> devnodes::tls::Certificate) -> String {
    nodes.fronts[0].set_certificate(&make(&nodes.authority), None);
    nodes.fronts[0].url()
}

#[test]
fn a_node_with_bad_tls_is_reported_and_the_others_grant() -> TestResult {
    let mut nodes = Secured::start(3);
    for (what, break_first, is_said) in CASES {
        eprintln!("{what}");
        nodes.fronts[0].set_certificate(&right(&nodes.authority), None);
        nodes.fronts[0].set_mute(false);
        let mut urls = nodes.urls();
        urls[0] = break_first(&mut nodes);

        // Longer than a test is waited for: whoever waited for the node would be noticed.
        // It gives up soon at its end, what it has for that node.
        let (long, grace) = (Duration::from_secs(60), Duration::from_millis(50));
        let options = patient(&urls).shutdown_grace(grace).tls(nodes.tls());
        let patient_one = options.clone().connect_timeout(long).build()?;
        let guard = patient_one.mutex("report").lock()?;
        eventually("both others have granted it", || {
            (1..3).all(|it| nodes.servers[it].exists("report"))
        });
        guard.extend(LONG)?;
        guard.release()?;
        nothing_is_left(&nodes.servers, "report");

        let short = Duration::from_millis(500);
        let locks = options.connect_timeout(short).build()?;
        let failure = tls_failure(&locks, 0);
        assert!(is_said(&failure), "{what}: {failure:?}");
        drop(lock_in_the_end(&locks, "report"));
        nothing_is_left(&nodes.servers, "report");
    }
    Ok(())
}

#[test]
fn without_a_tls_majority_the_error_has_the_reason_and_no_key_is_left() -> TestResult {
    let nodes = Secured::start(3);
    let expired = nodes.authority.certify_between(&["127.0.0.1"], 2000, 2001);
    for front in &nodes.fronts[..2] {
        front.set_certificate(&expired, None);
    }
    let locks = nodes.builder().build()?;

    let err = locks.mutex("report").try_lock().unwrap_err();

    let AcquireError::NoQuorum { nodes: rows, .. } = &err else {
        panic!("{err:?}")
    };
    let expired = NodeAnswer::Failed(NodeFailure::Tls(TlsFailure::Expired));
    assert_eq!((&rows[0].answer, &rows[1].answer), (&expired, &expired));
    let words = "TLS: its certificate has expired: renew it";
    assert!(err.to_string().contains(words), "{err}");
    nothing_is_left(&nodes.servers, "report");
    // And when they are renewed, all is well again.
    nodes
        .fronts
        .iter()
        .for_each(|it| it.set_certificate(&right(&nodes.authority), None));
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

#[test]
fn a_server_that_answers_the_handshake_in_another_protocol_speaks_no_tls() -> TestResult {
    for words in [
        "-DENIED Redis is running in protected mode\r\n",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
    ] {
        let plain = FakeServer::start(move |it| {
            it.write(words.as_bytes());
            while it.read_command().is_some() {}
        })?;
        let url = format!("rediss://{}", plain.addr());
        // Long enough to tell: it is not asked once more, without TLS.
        let long = Duration::from_secs(60);
        let locks = patient(&[url])
            .connect_timeout(long)
            .tls(Tls::with_ca_pem(Authority::generate().pem()))
            .build()?;

        assert_eq!(tls_failure(&locks, 0), TlsFailure::NotTls);
    }
    Ok(())
}

#[test]
fn no_password_is_sent_to_an_untrusted_server() -> TestResult {
    let authority = Authority::generate();
    let listens = FakeServer::silent()?;
    let front = Terminator::start(listens.addr(), &authority.certify(&["r1.internal"]), None)?;
    let url = front.url().replace("://", "://ann:the-password@");
    let tls = || Tls::with_ca_pem(authority.pem());
    let locks = patient(std::slice::from_ref(&url)).tls(tls()).build()?;

    let failure = tls_failure(&locks, 0);

    let is_mismatch = matches!(failure, TlsFailure::NameMismatch { .. });
    assert!(is_mismatch, "{failure:?}");
    assert!(listens.commands_seen().is_empty());
    // The same server, under its name.
    let accepted = patient(&[url])
        .connect_timeout(Duration::from_millis(500))
        .tls(tls().server_name("r1.internal"))
        .build()?;
    accepted
        .mutex("report")
        .try_lock_for(Duration::from_millis(1))
        .unwrap_err();
    eventually("it is logged in to", || !listens.commands_seen().is_empty());
    Ok(())
}
