//! Sentinels behind TLS. They are stand-ins, so that each has the certificate and the answer that a
//! test wants. Sentinels and servers with TLS of their own: `own_tls.rs`.

use std::net::SocketAddr;
use std::time::Duration;

use devnodes::FakeServer;
use devnodes::tls::Terminator;
use quorlock::error::TlsFailure;
use quorlock::{Builder, Node};

use crate::support::*;

/// A Sentinel that names this server.
fn naming(host: &str, primary: SocketAddr) -> FakeServer {
    let port = primary.port().to_string();
    let place = format!(
        "*2\r\n${}\r\n{host}\r\n${}\r\n{port}\r\n",
        host.len(),
        port.len()
    );
    FakeServer::start(move |conn| {
        while let Some(command) = conn.read_command() {
            let answer = match &command[0][..] {
                b"SENTINEL" => &place,
                _ => "+OK\r\n",
            };
            if !conn.write(answer.as_bytes()) {
                return;
            }
        }
    })
    .unwrap()
}

/// Three that speak TLS for a Sentinel, with a certificate for these names, and the URL of the
/// three.
fn in_front(nodes: &Secured, sentinel: &FakeServer, names: &[&str]) -> ([Terminator; 3], String) {
    let certificate = nodes.authority.certify(names);
    let fronts = [(); 3].map(|()| Terminator::start(sentinel.addr(), &certificate, None).unwrap());
    let places = fronts.each_ref().map(|it| it.addr().to_string()).join(",");
    (fronts, format!("rediss+sentinel://{places}/locks"))
}

fn hasty(node: impl Into<Node>) -> Builder {
    patient([node])
        .connect_timeout(Duration::from_secs(2))
        .shutdown_grace(Duration::from_millis(50))
}

fn is_mismatch(failure: &TlsFailure, name: &str) -> bool {
    matches!(failure, TlsFailure::NameMismatch { expected, .. } if &**expected == name)
}

#[test]
fn sentinels_with_bad_tls_are_reported_and_a_minority_is_harmless() -> TestResult {
    let nodes = Secured::start(1);
    let sentinel = naming("127.0.0.1", nodes.fronts[0].addr());
    let (fronts, url) = in_front(&nodes, &sentinel, &["127.0.0.1"]);
    let build = || hasty(&url).tls(nodes.tls()).build();
    let old = nodes.authority.certify_between(&["127.0.0.1"], 2000, 2001);
    fronts[0].set_certificate(&old, None);
    drop(build()?.mutex("report").try_lock()?);
    // One whose handshake hangs as well.
    fronts[0].set_certificate(&right(&nodes.authority), None);
    fronts[0].set_mute(true);
    drop(build()?.mutex("report").try_lock()?);

    fronts[1].set_certificate(&nodes.authority.certify(&["s1.internal"]), None);
    let failure = node_failure(&build()?).to_string();

    let rows = [
        "TLS: no answer to the TLS handshake in time",
        "TLS: its certificate is for DNS:s1.internal and not for 127.0.0.1",
        "127.0.0.1:",
    ];
    for (front, row) in fronts.iter().zip(rows) {
        let row = format!("{}: {row}", front.addr());
        assert!(failure.contains(&row), "{row} in {failure}");
    }
    Ok(())
}

#[test]
fn a_primary_s_certificate_is_for_its_name_at_sentinels_or_the_server_name() -> TestResult {
    let nodes = Secured::start(1);
    let names = ["redis.internal", "localhost"];
    nodes.fronts[0].set_certificate(&nodes.authority.certify(&names), None);
    let primary = nodes.fronts[0].addr();
    let (by_address, by_name) = (naming("127.0.0.1", primary), naming("localhost", primary));
    let (_first, by_address) = in_front(&nodes, &by_address, &["127.0.0.1"]);
    let (_second, by_name) = in_front(&nodes, &by_name, &["127.0.0.1"]);

    let failure = tls_failure(&hasty(&by_address).tls(nodes.tls()).build()?, 0);
    assert!(is_mismatch(&failure, "127.0.0.1"), "{failure}");
    let locks = hasty(by_name).tls(nodes.tls()).build()?;
    drop(lock_in_the_end(&locks, "report"));
    // A given name is for the servers and for nobody else,
    let named = nodes.tls().server_name("redis.internal");
    let node = Node::url(&by_address)
        .tls(named.clone())
        .sentinel_tls(nodes.tls());
    drop(lock_in_the_end(&hasty(node).build()?, "report"));
    // unless the Sentinels have no settings of their own.
    let failure = tls_failure(&hasty(&by_address).tls(named).build()?, 0);
    assert!(is_mismatch(&failure, "redis.internal"), "{failure}");
    Ok(())
}
