//! Nodes whose TLS is wrong: each says so in words of its own, and costs the others nothing.

use std::time::Duration;

use devnodes::tls::{Authority, Terminator};
use devnodes::{FakeServer, eventually};
use quorlock::error::{NodeAnswer, NodeFailure, TlsFailure};
use quorlock::{AcquireError, Node, Tls};

use crate::support::*;

/// What is wrong with the first node, and how the error begins.
type Case = (&'static str, fn(&mut Secured) -> String, &'static str);

const CASES: [Case; 9] = [
    (
        "expired",
        |it| show(it, |it| it.certify_between(&["127.0.0.1"], 2000, 2001)),
        "its certificate has expired: renew it, or correct this machine's clock",
    ),
    (
        "not yet valid",
        |it| show(it, |it| it.certify_between(&["127.0.0.1"], 3000, 4000)),
        "its certificate is not valid yet: correct this machine's clock, or wait",
    ),
    (
        "another name",
        |it| show(it, |it| it.certify(&["r1.internal", "10.9.8.7"])),
        "its certificate is for DNS:r1.internal, IP:10.9.8.7 and not for 127.0.0.1: \
         give its name in the address,",
    ),
    (
        "another authority",
        |it| show(it, |_| right(&Authority::generate())),
        "its certificate is from an unknown authority: trust that authority, or give its CA file",
    ),
    (
        "wants a certificate",
        |it| {
            it.fronts[0].set_certificate(&right(&it.authority), Some(&it.authority));
            it.fronts[0].url()
        },
        "a client certificate is required, and none was given: give one, with its key",
    ),
    (
        "without TLS",
        |it| format!("rediss://{}", it.servers[0].addr()),
        "answered without TLS: give its TLS port, or write redis:// if it has none",
    ),
    (
        "with TLS, and the address without",
        |it| it.fronts[0].url().replace("rediss://", "redis://"),
        "its port speaks TLS: write rediss:// instead of redis://",
    ),
    (
        "a handshake that hangs",
        |it| {
            it.fronts[0].set_mute(true);
            it.fronts[0].url()
        },
        "no answer to the TLS handshake in time",
    ),
    (
        "nobody behind it",
        |it| {
            it.servers[0].kill().unwrap();
            it.fronts[0].url()
        },
        "closed in the TLS handshake: ",
    ),
];

fn show(nodes: &Secured, make: fn(&Authority) -> devnodes::tls::Certificate) -> String {
    nodes.fronts[0].set_certificate(&make(&nodes.authority), None);
    nodes.fronts[0].url()
}

#[test]
fn a_node_with_bad_tls_is_reported_and_the_others_grant() -> TestResult {
    let mut nodes = Secured::start(3);
    for (what, break_first, begin) in CASES {
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
        let text = tls_failure(&locks, 0).to_string();
        assert!(text.starts_with(begin), "{what}: {text}");
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
fn no_password_is_sent_to_an_untrusted_server_or_sentinel() -> TestResult {
    type Secure = fn(Node, Tls) -> Node;
    let authority = Authority::generate();
    let trusting = || Tls::with_ca_pem(authority.pem());
    let rows: [(&str, Secure); 2] = [
        ("rediss://ann:the-password@ONE", Node::tls),
        (
            "rediss+sentinel://THREE/locks?sentinel_password=the-password",
            Node::sentinel_tls,
        ),
    ];
    for (url, secure) in rows {
        let listens = FakeServer::silent()?;
        let certificate = authority.certify(&["r1.internal"]);
        let start = || Terminator::start(listens.addr(), &certificate, None).unwrap();
        let fronts = [start(), start(), start()];
        let addrs = fronts.each_ref().map(|front| front.addr().to_string());
        let url = url
            .replace("ONE", &addrs[0])
            .replace("THREE", &addrs.join(","));
        let build = |tls| {
            let brief = Duration::from_millis(50);
            patient([secure(Node::url(&url), tls)])
                .shutdown_grace(brief)
                .build()
        };

        let failure = tls_failure(&build(trusting())?, 0);

        let is_mismatch = matches!(failure, TlsFailure::NameMismatch { .. });
        assert!(is_mismatch, "{failure:?}");
        assert!(listens.commands_seen().is_empty());
        // The same server, under its name. A try may end before its login.
        let accepted = build(trusting().server_name("r1.internal"))?;
        eventually("the login arrives", || {
            let brief = accepted.mutex("report");
            brief.try_lock_for(Duration::from_millis(1)).unwrap_err();
            !listens.commands_seen().is_empty()
        });
    }
    Ok(())
}
