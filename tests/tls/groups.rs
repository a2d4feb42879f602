//! Nodes whose members name the primary, reached by TLS: what speaks TLS stands in front of real servers, and Sentinels are made up.
//! With Sentinels and servers that have TLS of their own: `own_tls.rs`.

use std::net::SocketAddr;
use std::time::Duration;

use devnodes::tls::Terminator;
use devnodes::{FakeServer, eventually};
use quorlock::Builder;
use quorlock::Node;
use quorlock::error::{NodeFailure, TlsFailure};

use crate::bad_nodes::CASES;
use crate::support::*;

/// Servers behind TLS, of which the second is the primary of the first.
fn replicated() -> Secured {
    let nodes = Secured::start(2);
    let (replica, primary) = (&nodes.servers[0], &nodes.servers[1]);
    replica
        .command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()])
        .unwrap();
    nodes
}

/// `urls`: of its servers.
fn group(urls: &[String]) -> String {
    format!(
        "rediss+replicated://{}",
        urls.join(",").replace("rediss://", "")
    )
}

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

/// Three that speak TLS for a Sentinel, with a certificate for these names, and the URL of the three.
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
fn the_primary_among_servers_with_tls_is_found_and_after_a_promotion_the_other_one() -> TestResult {
    let nodes = replicated();
    let locks = patient(&[group(&nodes.urls())]).tls(nodes.tls()).build()?;
    let guard = lock_in_the_end(&locks, "report");
    assert!(nodes.servers[1].exists("report"));
    guard.release()?;
    assert!(!nodes.handshakes().contains(&0), "all are asked");

    nodes.servers[1].kill()?;
    nodes.servers[0].command(&["REPLICAOF", "NO", "ONE"])?;

    let _guard = lock_in_the_end(&locks, "later");
    assert!(nodes.servers[0].exists("later"));
    Ok(())
}

#[test]
fn a_member_with_bad_tls_is_reported_and_the_primary_is_found() -> TestResult {
    let mut nodes = replicated();
    for (what, break_first, is_said) in CASES {
        eprintln!("{what}");
        nodes.fronts[0].set_certificate(&right(&nodes.authority), None);
        nodes.fronts[0].set_mute(false);
        let first = break_first(&mut nodes);
        // The scheme is the same for all members of a node.
        let mut alone = group(std::slice::from_ref(&first));
        if first.starts_with("rediss://") {
            let url = group(&[first, nodes.fronts[1].url()]);
            let locks = hasty(url).tls(nodes.tls()).build()?;
            let guard = lock_in_the_end(&locks, "report");
            assert!(nodes.servers[1].exists("report"));
            guard.release()?;
        } else {
            alone = first.replace("redis:", "redis+replicated:");
        }

        let alone = match alone.starts_with("rediss") {
            true => hasty(alone).tls(nodes.tls()),
            false => hasty(alone),
        };
        match node_failure(&alone.build()?) {
            NodeFailure::Tls(said) => assert!(is_said(&said), "{what}: {said}"),
            // Nobody has to mend anything.
            other => assert!(
                other.to_string().contains("TLS handshake"),
                "{what}: {other}"
            ),
        }
    }
    Ok(())
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

#[test]
fn the_servers_of_a_node_get_the_same_client_certificate() -> TestResult {
    let nodes = replicated();
    nodes.ask_for_certificates();
    let failure = tls_failure(&hasty(group(&nodes.urls())).tls(nodes.tls()).build()?, 0);
    assert_eq!(failure, TlsFailure::CertificateRequired);

    let ours = nodes.authority.certify(&["client"]);
    let showing = nodes.tls().client_cert_pem(ours.chain, ours.key);
    let locks = hasty(group(&nodes.urls())).tls(showing).build()?;
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

#[test]
fn no_password_is_sent_to_an_untrusted_sentinel() -> TestResult {
    let nodes = Secured::start(1);
    let listens = FakeServer::silent()?;
    let (_fronts, url) = in_front(&nodes, &listens, &["s1.internal"]);
    let url = format!("{url}?sentinel_password=the-password");
    // Long enough that a busy machine is no other failure.
    let patience = |it: Builder| it.connect_timeout(Duration::from_secs(20));
    let failure = tls_failure(&patience(hasty(&url)).tls(nodes.tls()).build()?, 0);
    assert!(is_mismatch(&failure, "127.0.0.1"), "{failure}");
    assert!(listens.commands_seen().is_empty());

    let named = nodes.tls().server_name("s1.internal");
    let locks = patience(hasty(Node::url(&url).sentinel_tls(named))).build()?;
    // A try may end before it was the turn of the Sentinel.
    eventually("it is logged in to", || {
        let brief = locks.mutex("report");
        brief.try_lock_for(Duration::from_millis(1)).unwrap_err();
        !listens.commands_seen().is_empty()
    });
    Ok(())
}
