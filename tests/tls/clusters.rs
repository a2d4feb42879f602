//! A node that is a cluster, reached by TLS: `rediss+cluster://`. Its servers speak TLS themselves, where the server at hand was
//! built with it, because they tell clients where the others are.

use std::time::Duration;

use devnodes::find::server_version;
use devnodes::tls::{Authority, Certificate};
use devnodes::{Cluster, ClusterBuilder, Server, eventually};
use quorlock::Node;
use quorlock::error::{NodeAnswer, NodeFailure, TlsFailure};
use quorlock::{Builder, LockManager, Tls};

use crate::own_tls::started;
use crate::support::*;

/// A cluster of three masters whose servers have this certificate.
fn of_three(authority: &Authority, certificate: &Certificate) -> ClusterBuilder {
    secured(Cluster::builder(3), authority, certificate)
}

fn secured(
    cluster: ClusterBuilder,
    authority: &Authority,
    certificate: &Certificate,
) -> ClusterBuilder {
    cluster.own_tls(certificate, authority)
}

fn to(cluster: &Cluster, authority: &Authority) -> Builder {
    patient(&[cluster.tls_url()]).tls(Tls::with_ca_pem(authority.pem()))
}

/// Has a server show another certificate from the next connection on.
fn show(server: &Server, folder: &tempfile::TempDir, certificate: &Certificate) {
    let write = |name: &str, pem: &str| {
        let path = folder.path().join(format!("{}-{name}.pem", server.port()));
        std::fs::write(&path, pem).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let (chain, key) = (
        write("chain", &certificate.chain),
        write("key", &certificate.key),
    );
    server
        .command(&[
            "CONFIG",
            "SET",
            "tls-cert-file",
            &chain,
            "tls-key-file",
            &key,
        ])
        .unwrap();
}

/// What is said of the cluster, once it is in its TLS, when this name is asked for.
#[track_caller]
fn said_of(locks: &LockManager, name: &str) -> TlsFailure {
    let mut found = None;
    eventually("the cluster fails for its TLS", || {
        let err = locks.mutex(name).try_lock().err();
        found = err.and_then(|it| match &it.nodes().first()?.answer {
            NodeAnswer::Failed(NodeFailure::Tls(failure)) => Some(failure.clone()),
            _ => None,
        });
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_lock_is_taken_by_tls_from_the_master_of_its_slot_and_follows_the_slot() -> TestResult {
    let authority = Authority::generate();
    let Some(cluster) = started(of_three(&authority, &right(&authority)).start()) else {
        return Ok(());
    };
    let locks = to(&cluster, &authority).build()?;
    let names = cluster.names::<3>("report");
    for (index, name) in names.iter().enumerate() {
        let guard = locks.mutex(name).try_lock()?;
        assert!(cluster.is_at(index, name));
        assert!(locks.mutex(name).try_lock().is_err());
        guard.extend(LONG)?;
        guard.release()?;
        assert!(!cluster.is_at(index, name));
    }

    let guard = locks.mutex(&names[0]).renew(false).try_lock()?;
    cluster.migrate(cluster.slot_of(&names[0]), 1)?;
    assert!(cluster.is_at(1, &names[0]));
    drop(guard);
    eventually("the release finds it", || !cluster.is_at(1, &names[0]));
    let _guard = lock_in_the_end(&locks, &names[0]);
    assert!(cluster.is_at(1, &names[0]));
    Ok(())
}

#[test]
fn a_cluster_whose_tls_is_wrong_says_what_it_is() -> TestResult {
    let authority = Authority::generate();
    let Some(cluster) =
        started(secured(Cluster::builder(1), &authority, &right(&authority)).start())
    else {
        return Ok(());
    };
    let failure = |url: String, tls: Option<Tls>| {
        let builder = patient(&[url]).connect_timeout(Duration::from_secs(2));
        let locks = tls.into_iter().fold(builder, Builder::tls).build().unwrap();
        let mut found = None;
        eventually("the cluster fails", || {
            found = locks.check_nodes().swap_remove(0).failure;
            found.is_some()
        });
        found.unwrap()
    };
    let trusting = || Tls::with_ca_pem(authority.pem());
    let by_tls = |it| failure(cluster.tls_url(), Some(it));

    let unknown = by_tls(Tls::with_ca_pem(Authority::generate().pem()));
    assert_eq!(unknown, NodeFailure::Tls(TlsFailure::UnknownIssuer));
    let failure_of_name = by_tls(trusting().server_name("c1.internal"));
    let (expected, presented) = ("c1.internal".into(), "127.0.0.1".to_owned());
    assert_eq!(
        failure_of_name,
        NodeFailure::Tls(TlsFailure::NameMismatch {
            expected,
            presented
        })
    );
    let without = failure(cluster.url().replace("redis+", "rediss+"), Some(trusting()));
    assert_eq!(without, NodeFailure::Tls(TlsFailure::NotTls));
    // Such a port closes a connection without a word.
    let with = failure(cluster.tls_url().replace("rediss+", "redis+"), None);
    assert!(
        says(
            &with,
            "no server of the cluster says who serves which slots"
        ),
        "{with}"
    );
    assert!(
        with.to_string()
            .contains("if its port speaks TLS, the address begins with rediss"),
        "{with}"
    );
    let one = failure(
        format!("rediss://{}", cluster.servers[0].tls_addr()),
        Some(trusting()),
    );
    assert!(says(&one, "part of a cluster; "), "{one}");
    let single = Secured::start(1);
    let none = failure(
        single.urls()[0].replace("rediss:", "rediss+cluster:"),
        Some(single.tls()),
    );
    assert!(says(&none, "not part of a cluster; "), "{none}");
    let folder = tempfile::tempdir()?;
    show(
        &cluster.servers[0],
        &folder,
        &authority.certify_between(&["127.0.0.1"], 2000, 2001),
    );
    assert_eq!(by_tls(trusting()), NodeFailure::Tls(TlsFailure::Expired));
    Ok(())
}

#[test]
fn a_master_whose_certificate_is_wrong_costs_the_names_in_its_slots_only() -> TestResult {
    let authority = Authority::generate();
    let Some(cluster) = started(of_three(&authority, &right(&authority)).start()) else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    show(&cluster.servers[2], &folder, &right(&Authority::generate()));
    let locks = to(&cluster, &authority).build()?;
    let [one, other, wrong] = cluster.names::<3>("report");

    for name in [&one, &other] {
        drop(lock_in_the_end(&locks, name));
    }
    assert_eq!(said_of(&locks, &wrong), TlsFailure::UnknownIssuer);
    assert!(!cluster.is_at(2, &wrong));

    show(&cluster.servers[2], &folder, &right(&authority));
    drop(lock_in_the_end(&locks, &wrong));
    Ok(())
}

#[test]
fn the_certificate_of_a_master_is_for_the_name_that_it_announces_or_for_its_address_or_the_server_name()
-> TestResult {
    let authority = Authority::generate();
    let names_only = authority.certify(&["c.internal", "localhost"]);
    let (cluster, announces) = (
        of_three(&authority, &names_only),
        7 <= major(&server_version()?),
    );
    // A name that nobody can look up: it is for the certificate only.
    let cluster = if announces {
        cluster.arg("--cluster-announce-hostname", "c.internal")
    } else {
        cluster
    };
    let Some(cluster) = started(cluster.start()) else {
        return Ok(());
    };
    // The others are learned from it.
    let url = [format!(
        "rediss+cluster://localhost:{}",
        cluster.servers[0].tls_addr().port()
    )];
    let trusting = || Tls::with_ca_pem(authority.pem());
    let [first, second, _] = cluster.names::<3>("report");
    let announce =
        |name| cluster.servers[0].command(&["CONFIG", "SET", "cluster-announce-hostname", name]);

    if announces {
        let locks = patient(&url).tls(trusting()).build()?;
        drop(lock_in_the_end(&locks, &second));
        // One that is in no certificate, and then none at all.
        announce("d.internal")?;
        let said = said_of(&patient(&url).tls(trusting()).build()?, &first);
        assert!(
            matches!(&said, TlsFailure::NameMismatch { expected, .. } if &**expected == "d.internal"),
            "{said}"
        );
        announce("")?;
    } else {
        eprintln!("left out: servers that announce names");
    }
    let said = said_of(&patient(&url).tls(trusting()).build()?, &first);
    assert!(
        matches!(&said, TlsFailure::NameMismatch { expected, .. } if &**expected == "127.0.0.1"),
        "{said}"
    );
    let named = patient(&url)
        .tls(trusting().server_name("c.internal"))
        .build()?;
    drop(lock_in_the_end(&named, &first));
    Ok(())
}

/// Before 7.2 servers that talk to each other without TLS do not know each other's ports for it.
#[test]
fn a_cluster_that_names_ports_without_tls_says_so() -> TestResult {
    let authority = Authority::generate();
    let cluster = of_three(&authority, &right(&authority)).plain_bus().start();
    let Some(cluster) = started(cluster) else {
        return Ok(());
    };
    let locks = to(&cluster, &authority)
        .connect_timeout(Duration::from_secs(2))
        .build()?;
    let [name, ..] = cluster.names::<3>("report");
    let version = server_version()?;
    let tells = !["6.", "7.0."].iter().any(|it| version.starts_with(it));

    if tells {
        drop(lock_in_the_end(&locks, &name));
        return Ok(());
    }
    let said = said_of(&locks, &name);
    assert_eq!(said, TlsFailure::NotTls);
    assert!(said.to_string().contains("tls-cluster yes"), "{said}");
    Ok(())
}

fn major(version: &str) -> u64 {
    version
        .split('.')
        .next()
        .and_then(|it| it.parse().ok())
        .unwrap_or_default()
}

#[test]
fn a_failover_in_a_cluster_with_tls_costs_no_lock() -> TestResult {
    if std::env::var_os("QUORLOCK_LONG").is_none() {
        return Ok(());
    }
    let authority = Authority::generate();
    let Some(cluster) = started(of_three(&authority, &right(&authority)).replicas(1).start())
    else {
        return Ok(());
    };
    let singles = Secured::start(2);
    let singles_of_another = singles
        .urls()
        .into_iter()
        .map(|url| Node::url(url).tls(singles.tls()));
    let nodes: Vec<_> = [Node::url(cluster.tls_url())]
        .into_iter()
        .chain(singles_of_another)
        .collect();
    let locks = patient(nodes)
        .tls(Tls::with_ca_pem(authority.pem()))
        .build()?;
    let [agreed, killed, _] = cluster.names::<3>("report");
    let guards = [&agreed, &killed].map(|it| locks.mutex(it).lock().unwrap());

    cluster.fail_over(3)?;
    let promoted = cluster.kill(1)?;
    for guard in guards {
        guard.extend(LONG)?;
        guard.release()?;
    }

    for (name, server) in [(&agreed, 3), (&killed, promoted)] {
        eventually("the promoted server grants it", || {
            let guard = locks.mutex(name).try_lock();
            guard.is_ok() && cluster.is_at(server, name)
        });
    }
    Ok(())
}
