//! Nodes that are more than one server, reached by TLS: what speaks TLS stands in front of real servers, and sentinels are made
//! up where it matters what they say. With sentinels and servers that have TLS of their own: `own_tls.rs`.

use std::net::SocketAddr;
use std::time::Duration;

use devnodes::tls::Terminator;
use devnodes::{FakeServer, eventually};
use quorlock::Builder;
use quorlock::Node;
use quorlock::error::{MemberAnswer, NodeFailure, TlsFailure};

use crate::bad_nodes::CASES;
use crate::support::*;

/// Servers behind TLS, of which the second is the master of the first.
fn replicated() -> Secured {
    let nodes = Secured::start(2);
    replicate(&nodes);
    nodes
}

fn replicate(nodes: &Secured) {
    let (replica, master) = (&nodes.servers[0], &nodes.servers[1]);
    replica
        .command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])
        .unwrap();
}

/// `urls`: of its servers.
fn group(urls: &[String]) -> String {
    format!(
        "rediss+replicated://{}",
        urls.join(",").replace("rediss://", "")
    )
}

/// A sentinel that calls this the master.
fn naming(host: &str, master: SocketAddr) -> FakeServer {
    let port = master.port().to_string();
    let place = format!(
        "*2\r\n${}\r\n{host}\r\n${}\r\n{port}\r\n",
        host.len(),
        port.len()
    );
    FakeServer::start(move |conn| {
        while let Some(command) = conn.read_command() {
            let answer = match (&command[0][..], command.get(1).map(|it| &it[..])) {
                (b"SENTINEL", Some(b"MASTER")) => "*2\r\n$12\r\nconfig-epoch\r\n$1\r\n1\r\n",
                (b"SENTINEL", _) => &place,
                _ => "+OK\r\n",
            };
            if !conn.write(answer.as_bytes()) {
                return;
            }
        }
    })
    .unwrap()
}

/// What speaks TLS for a sentinel, with a certificate for these names.
fn in_front(nodes: &Secured, sentinel: &FakeServer, names: &[&str]) -> Terminator {
    Terminator::start(sentinel.addr(), &nodes.authority.certify(names), None).unwrap()
}

fn sentinels(fronts: &[&Terminator]) -> String {
    let places: Vec<_> = fronts.iter().map(|it| it.addr().to_string()).collect();
    format!("rediss+sentinel://{}/locks", places.join(","))
}

/// A look takes half of that, where somebody does not answer.
fn hasty(node: impl Into<Node>) -> Builder {
    patient([node])
        .connect_timeout(Duration::from_secs(2))
        .shutdown_grace(Duration::from_millis(50))
}

#[test]
fn the_master_among_servers_with_tls_is_found_and_after_a_promotion_the_other_one() -> TestResult {
    let nodes = replicated();
    let locks = patient(&[group(&nodes.urls())]).tls(nodes.tls()).build()?;
    let guard = lock_in_the_end(&locks, "report");
    assert!(nodes.servers[1].exists("report"));
    guard.release()?;
    assert!(
        nodes.fronts.iter().all(|it| 1 <= it.handshakes()),
        "all are asked"
    );

    nodes.servers[1].kill()?;
    nodes.servers[0].command(&["REPLICAOF", "NO", "ONE"])?;

    let _guard = lock_in_the_end(&locks, "later");
    assert!(nodes.servers[0].exists("later"));
    Ok(())
}

#[test]
fn a_server_of_a_node_whose_tls_is_wrong_says_so_and_keeps_nobody_from_the_master() -> TestResult {
    let mut nodes = replicated();
    for (what, break_first, is_said) in CASES {
        eprintln!("{what}");
        nodes.fronts[0].set_certificate(&right(&nodes.authority), None);
        nodes.fronts[0].set_mute(false);
        let first = break_first(&mut nodes);
        // Of a group that speaks TLS all do.
        if !first.starts_with("rediss://") {
            continue;
        }

        let locks = hasty(group(&[first.clone(), nodes.fronts[1].url()]))
            .tls(nodes.tls())
            .build()?;
        let guard = lock_in_the_end(&locks, "report");
        assert!(nodes.servers[1].exists("report"));
        guard.release()?;

        let alone = hasty(group(&[first])).tls(nodes.tls()).build()?;
        let (failure, answers) =
            member_answers(&alone, |it| matches!(it, NodeFailure::NoMaster { .. }));
        let [MemberAnswer::Failed(NodeFailure::Tls(said))] = &answers[..] else {
            panic!("{what}: {failure}")
        };
        assert!(is_said(said), "{what}: {failure}");
    }
    Ok(())
}

#[test]
fn a_server_that_speaks_tls_is_known_by_its_answer_where_the_address_of_its_node_is_without()
-> TestResult {
    let nodes = replicated();
    let locks = hasty(group(&nodes.urls()).replace("rediss+", "redis+")).build()?;
    let (_, answers) = member_answers(&locks, |it| matches!(it, NodeFailure::NoMaster { .. }));
    assert_eq!(answers, vec![tls(TlsFailure::SpeaksTls); 2]);
    Ok(())
}

#[test]
fn sentinels_whose_tls_is_wrong_say_so_and_a_minority_of_them_changes_nothing() -> TestResult {
    let nodes = Secured::start(1);
    let fakes: Vec<_> = (0..3)
        .map(|_| naming("127.0.0.1", nodes.fronts[0].addr()))
        .collect();
    let fronts: Vec<_> = fakes
        .iter()
        .map(|it| in_front(&nodes, it, &["127.0.0.1"]))
        .collect();
    let url = sentinels(&fronts.iter().collect::<Vec<_>>());
    fronts[0].set_certificate(
        &nodes.authority.certify_between(&["127.0.0.1"], 2000, 2001),
        None,
    );
    let locks = hasty(&url).tls(nodes.tls()).build()?;
    drop(lock_in_the_end(&locks, "report"));
    // One whose handshake hangs as well.
    fronts[0].set_certificate(&right(&nodes.authority), None);
    fronts[0].set_mute(true);
    let patient_one = hasty(&url).tls(nodes.tls()).build()?;
    drop(lock_in_the_end(&patient_one, "report"));

    fronts[1].set_certificate(&nodes.authority.certify(&["s1.internal"]), None);
    let locks = hasty(&url).tls(nodes.tls()).build()?;
    let (failure, answers) = member_answers(&locks, |it| says(it, "1 of 3 sentinels answered"));
    assert_eq!(answers[0], tls(TlsFailure::NoAnswer), "{failure}");
    let presented = "s1.internal".to_owned();
    assert_eq!(
        answers[1],
        tls(TlsFailure::NameMismatch {
            expected: "127.0.0.1".into(),
            presented
        }),
        "{failure}"
    );
    Ok(())
}

#[test]
fn the_certificate_of_a_master_is_for_what_the_sentinels_call_it_or_for_the_server_name()
-> TestResult {
    let nodes = Secured::start(1);
    nodes.fronts[0].set_certificate(
        &nodes.authority.certify(&["redis.internal", "localhost"]),
        None,
    );
    let master = nodes.fronts[0].addr();
    let (by_address, by_name) = (naming("127.0.0.1", master), naming("localhost", master));
    let fronts = [&by_address, &by_name].map(|it| in_front(&nodes, it, &["127.0.0.1"]));

    // They name it by its address.
    let failure = tls_failure(
        &hasty(sentinels(&[&fronts[0]])).tls(nodes.tls()).build()?,
        0,
    );
    assert!(
        matches!(&failure, TlsFailure::NameMismatch { expected, .. } if &**expected == "127.0.0.1"),
        "{failure}"
    );
    // By its name.
    drop(lock_in_the_end(
        &hasty(sentinels(&[&fronts[1]])).tls(nodes.tls()).build()?,
        "report",
    ));
    // With a name that is given, for the servers and for nobody else.
    let named = nodes.tls().server_name("redis.internal");
    let node = Node::url(sentinels(&[&fronts[0]]))
        .tls(named.clone())
        .sentinel_tls(nodes.tls());
    let locks = hasty(node).build()?;
    drop(lock_in_the_end(&locks, "report"));
    // Without the last the name would be that of the sentinels too.
    let locks = hasty(sentinels(&[&fronts[0]])).tls(named).build()?;
    let (_, answers) = member_answers(&locks, |it| says(it, "0 of 1 sentinels answered"));
    let presented = "127.0.0.1".to_owned();
    assert_eq!(
        answers,
        [tls(TlsFailure::NameMismatch {
            expected: "redis.internal".into(),
            presented
        })]
    );
    Ok(())
}

#[test]
fn the_servers_of_a_node_ask_for_the_same_client_certificate() -> TestResult {
    let nodes = replicated();
    nodes
        .fronts
        .iter()
        .for_each(|it| it.set_certificate(&right(&nodes.authority), Some(&nodes.authority)));
    let locks = hasty(group(&nodes.urls())).tls(nodes.tls()).build()?;
    let (_, answers) = member_answers(&locks, |it| matches!(it, NodeFailure::NoMaster { .. }));
    assert_eq!(answers, vec![tls(TlsFailure::CertificateRequired); 2]);

    let ours = nodes.authority.certify(&["client"]);
    let showing = nodes.tls().client_cert_pem(ours.chain, ours.key);
    drop(lock_in_the_end(
        &hasty(group(&nodes.urls())).tls(showing).build()?,
        "report",
    ));
    Ok(())
}

#[test]
fn no_password_is_sent_to_a_sentinel_that_was_not_accepted() -> TestResult {
    let nodes = Secured::start(1);
    let listens = FakeServer::silent()?;
    let front = in_front(&nodes, &listens, &["s1.internal"]);
    let url = format!("{}?sentinel_password=the-password", sentinels(&[&front]));
    let (_, answers) = member_answers(&hasty(&url).tls(nodes.tls()).build()?, |it| {
        says(it, "0 of 1 sentinels answered")
    });
    assert!(
        matches!(&answers[..], [MemberAnswer::Failed(NodeFailure::Tls(_))]),
        "{answers:?}"
    );
    assert_eq!(
        listens.commands_seen(),
        Vec::<devnodes::fake::Command>::new()
    );

    let named = nodes.tls().server_name("s1.internal");
    let locks = hasty(Node::url(&url).sentinel_tls(named)).build()?;
    locks
        .mutex("report")
        .try_lock_for(Duration::from_millis(1))
        .unwrap_err();
    eventually("it is logged in to", || !listens.commands_seen().is_empty());
    Ok(())
}
