//! Servers that speak TLS themselves, which is OpenSSL's, where the server at hand was built with it.

use devnodes::tls::Authority;
use devnodes::{Cluster, Error, Group, Server, eventually, eventually_some};
use quorlock::error::{NodeFailure, TlsFailure};
use quorlock::{LockManager, Tls};

use crate::support::*;

/// What was started; `None` if the server was built without TLS.
#[track_caller]
pub(crate) fn started<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(it) => Some(it),
        Err(err) if err.is_no_tls() => {
            eprintln!("left out, as the server has no TLS of its own");
            None
        }
        Err(err) => panic!("{err}"),
    }
}

/// A server with a TLS port beside the other one, and its address.
fn start(authority: &Authority, asks_for_ours: bool) -> Option<(Server, String)> {
    let certificate = right(authority);
    let asks = if asks_for_ours { "yes" } else { "no" };
    let server = Server::builder()
        .own_tls(&certificate, authority)
        .arg("--tls-auth-clients", asks)
        .start();
    started(server).map(|it| {
        let address = it.tls_addr().to_string();
        (it, address)
    })
}

#[test]
fn a_server_with_tls_of_its_own_grants_locks() -> TestResult {
    let authority = Authority::generate();
    let Some((server, address)) = start(&authority, false) else {
        return Ok(());
    };
    let locks = patient(&[format!("rediss://{address}")])
        .tls(Tls::with_ca_pem(authority.pem()))
        .build()?;

    for turn in 0..50 {
        let guard = locks.mutex(format!("report-{turn}")).lock()?;
        guard.extend(LONG)?;
        guard.release()?;
    }

    server.command(&["CLIENT", "KILL", "TYPE", "normal"])?;
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

#[test]
fn a_server_with_tls_of_its_own_that_wants_a_certificate_gets_one() -> TestResult {
    let (authority, stranger) = (Authority::generate(), Authority::generate());
    let Some((_server, address)) = start(&authority, true) else {
        return Ok(());
    };
    let url = [format!("rediss://{address}")];
    let trusting = || Tls::with_ca_pem(authority.pem());
    let showing = |it: &Authority| {
        let certificate = it.certify(&["client"]);
        trusting().client_cert_pem(certificate.chain, certificate.key)
    };

    let failure = tls_failure(&patient(&url).tls(trusting()).build()?, 0);
    assert_eq!(failure, TlsFailure::CertificateRequired);
    let failure = tls_failure(&patient(&url).tls(showing(&stranger)).build()?, 0);
    let is_refused = matches!(failure, TlsFailure::CertificateRefused { .. });
    assert!(is_refused, "{failure:?}");
    let locks = patient(&url).tls(showing(&authority)).build()?;
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

/// It closes such a connection without a word.
#[test]
fn a_plain_address_of_a_tls_port_has_a_hint_in_its_error() -> TestResult {
    let authority = Authority::generate();
    let Some((_server, address)) = start(&authority, false) else {
        return Ok(());
    };
    let locks = LockManager::builder([format!("redis://{address}")]).build()?;
    let text = eventually_some("the node fails", || {
        let failure = locks.check_nodes().swap_remove(0).failure?;
        matches!(failure, NodeFailure::Disconnected { .. }).then(|| failure.to_string())
    });

    let end = "before it answered; if its port speaks TLS, the address begins with rediss://";
    assert!(text.ends_with(end), "{text}");
    Ok(())
}

/// A master with a replica and three sentinels, which talk by TLS to each other.
fn watched(authority: &Authority) -> Option<Group> {
    let certificate = right(authority);
    started(
        Group::builder(1)
            .sentinels(3)
            .own_tls(&certificate, authority)
            .start(),
    )
}

fn list<'a>(
    servers: impl IntoIterator<Item = &'a Server>,
    addr: fn(&Server) -> std::net::SocketAddr,
) -> String {
    servers
        .into_iter()
        .map(|it| addr(it).to_string())
        .collect::<Vec<_>>()
        .join(",")
}

#[test]
fn the_primary_is_found_by_tls_before_and_after_a_failover() -> TestResult {
    let authority = Authority::generate();
    let Some(group) = watched(&authority) else {
        return Ok(());
    };
    let trusting = || Tls::with_ca_pem(authority.pem());
    let url = format!(
        "rediss+sentinel://{}/locks",
        list(&group.sentinels, Server::tls_addr)
    );
    let locks = patient(std::slice::from_ref(&url))
        .tls(trusting())
        .build()?;
    let first = lock_in_the_end(&locks, "report");
    assert!(group.servers[0].exists("report"));

    // Sentinels that speak no TLS themselves, although the servers do.
    let plain = format!(
        "rediss+sentinel://{}/locks?sentinel_tls=no",
        list(&group.sentinels, Server::addr)
    );
    let beside = patient(&[plain]).tls(trusting()).build()?;
    let second = lock_in_the_end(&beside, "beside");
    assert!(group.servers[0].exists("beside"));
    // Without Sentinels, from the servers alone.
    let replicated = format!(
        "rediss+replicated://{}",
        list(&group.servers, Server::tls_addr)
    );
    let alone = patient(&[replicated]).tls(trusting()).build()?;
    let third = lock_in_the_end(&alone, "alone");
    assert!(group.servers[0].exists("alone"));
    drop((first, second, third));

    group.servers[0].kill()?;
    assert_eq!(group.fail_over(0)?, 1);

    for (locks, name) in [
        (locks, "later"),
        (beside, "later beside"),
        (alone, "later alone"),
    ] {
        let _guard = lock_in_the_end(&locks, name);
        assert!(group.servers[1].exists(name));
    }
    Ok(())
}

#[test]
fn a_member_without_tls_is_reported() -> TestResult {
    let authority = Authority::generate();
    let Some(group) = watched(&authority) else {
        return Ok(());
    };
    for url in [
        format!(
            "rediss+sentinel://{}/locks",
            list(&group.sentinels, Server::addr)
        ),
        format!("rediss+replicated://{}", list(&group.servers, Server::addr)),
    ] {
        let locks = patient(&[url]).tls(Tls::with_ca_pem(authority.pem()));
        assert_eq!(tls_failure(&locks.build()?, 0), TlsFailure::NotTls);
    }

    // And the other way round. Such a port closes the connection without a word.
    let url = format!(
        "redis+sentinel://{}/locks",
        list(&group.sentinels, Server::tls_addr)
    );
    let said = node_failure(&patient(&[url]).build()?).to_string();
    let words = "if its port speaks TLS, the address begins with rediss";
    assert!(said.contains(words), "{said}");
    Ok(())
}

#[test]
fn a_lock_is_taken_by_tls_from_the_owner_of_the_slot_and_follows_the_slot() -> TestResult {
    let authority = Authority::generate();
    let cluster = Cluster::builder(3)
        .replicas(1)
        .own_tls(&right(&authority), &authority);
    let Some(cluster) = started(cluster.start()) else {
        return Ok(());
    };
    let tag = cluster.name_at(0, "report");
    let locks = patient(&[cluster.tls_url()])
        .prefix(format!("{{{tag}}}:"))
        .tls(Tls::with_ca_pem(authority.pem()))
        .build()?;
    let key = format!("{{{tag}}}:report");
    let guard = locks.mutex("report").try_lock()?;
    assert!(cluster.is_at(0, &key));

    cluster.migrate(cluster.slot_of(&tag), 1)?;
    assert!(cluster.is_at(1, &key));
    drop(guard);
    eventually("the release finds it", || !cluster.is_at(1, &key));
    drop(lock_in_the_end(&locks, "report"));

    cluster.fail_over(4)?;
    let _guard = lock_in_the_end(&locks, "report");
    assert!(cluster.is_at(4, &key));
    Ok(())
}
