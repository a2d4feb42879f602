//! Locks, on nodes that are in order.

use std::thread;
use std::time::Duration;

use devnodes::{Proxy, eventually};
use quorlock::Node;

use crate::support::*;

#[test]
fn a_lock_is_taken_refused_to_others_extended_handed_over_and_released() -> TestResult {
    let nodes = Secured::start(3);
    let build = || nodes.builder().ttl(Duration::from_secs(20)).build();
    let (first, second) = (build()?, build()?);
    let guard = first.mutex("report").lock()?;
    nodes.wait_for_grants();

    assert!(second.mutex("report").try_lock().unwrap_err().is_held());
    guard.extend(LONG)?;
    let waiter = thread::spawn(move || {
        let guard = second.mutex("report").try_lock_for(devnodes::PATIENCE);
        guard.unwrap().release().unwrap();
        second.stats().notices
    });
    eventually("the other waits on all servers", || {
        first.stats().waiting == 0 && nodes.servers.holders("quorlock:waiting:report") == 3
    });
    guard.release()?;

    // It was told of the release, over the same connections.
    assert_ne!(waiter.join().unwrap(), 0);
    nothing_is_left(&nodes.servers, "report");
    assert_eq!(nodes.handshakes(), [2; 3]);
    Ok(())
}

/// All that one `send` or `recv` can do to records: they come in parts, and what is written is not taken at once.
#[test]
fn tls_records_in_parts_are_put_together() -> TestResult {
    let nodes = Secured::start(3);
    let proxies: Vec<_> = nodes
        .fronts
        .iter()
        .map(|it| Proxy::start(it.addr()).unwrap())
        .collect();
    let urls: Vec<_> = proxies
        .iter()
        .map(|it| it.url().replace("redis://", "rediss://"))
        .collect();
    proxies
        .iter()
        .for_each(|it| it.trickle(Duration::from_micros(1)));
    let locks = patient(&urls)
        .response_timeout(Duration::from_secs(20))
        .tls(nodes.tls())
        .build()?;

    drop(lock_in_the_end(&locks, "report"));

    // Names of several records each, and more than the system takes: what is left waits in line.
    proxies.iter().for_each(|it| it.trickle(Duration::ZERO));
    proxies.iter().for_each(|it| it.narrow(4_000_000));
    thread::scope(|scope| {
        for thread in 0..8 {
            let locks = &locks;
            scope.spawn(move || drop(lock_in_the_end(locks, &thread.to_string().repeat(60_000))));
        }
    });
    proxies.iter().for_each(|it| it.narrow(0));
    eventually("nothing is left", || {
        (0..8).all(|it: i32| nodes.servers.holders(it.to_string().repeat(60_000)) == 0)
    });
    assert_eq!(nodes.handshakes(), [1; 3]);
    Ok(())
}

#[test]
fn a_server_may_renew_its_keys_and_ours_in_the_middle_of_replies() -> TestResult {
    let nodes = Secured::start(3);
    let locks = nodes.builder().build()?;
    nodes.fronts.iter().for_each(|it| it.set_refresh(true));

    for turn in 0..20 {
        lock_in_the_end(&locks, &format!("report-{turn}")).release()?;
    }

    assert_eq!(nodes.handshakes(), [1; 3]);
    Ok(())
}

#[test]
fn servers_with_tls_1_2_only_are_supported() -> TestResult {
    let nodes = Secured::start(3);
    nodes
        .fronts
        .iter()
        .for_each(|it| it.set_old(&right(&nodes.authority), Some(&nodes.authority)));
    let certificate = nodes.authority.certify(&["client"]);
    let tls = nodes.tls();
    let tls = tls.client_cert_pem(certificate.chain, certificate.key);
    let locks = nodes.builder().tls(tls).build()?;

    let guard = lock_in_the_end(&locks, "report");

    nodes.wait_for_grants();
    guard.release()?;
    Ok(())
}

#[test]
fn a_node_is_reached_by_another_name_than_its_certificate_has() -> TestResult {
    let nodes = Secured::start(3);
    let names = ["r0.internal", "r1.internal", "r2.internal"];
    for (front, name) in nodes.fronts.iter().zip(names) {
        front.set_certificate(&nodes.authority.certify(&[name]), None);
    }
    let named = |(url, name): (String, _)| Node::url(url).tls(nodes.tls().server_name(name));
    let locks = patient(nodes.urls().into_iter().zip(names).map(named)).build()?;

    let guard = lock_in_the_end(&locks, "report");

    nodes.wait_for_grants();
    drop(guard);
    let one_name = nodes.tls().server_name(names[1]);
    let one_name = nodes.builder().tls(one_name).build()?;
    comes_up(&one_name, 1);
    let failure = tls_failure(&one_name, 0).to_string();
    assert!(failure.contains("r0.internal"), "{failure}");
    Ok(())
}

#[test]
fn nodes_with_tls_and_nodes_without_form_one_set() -> TestResult {
    let nodes = Secured::start(3);
    let mut urls = nodes.urls();
    urls[1] = format!("redis://{}", nodes.servers[1].addr());
    let locks = patient(&urls).tls(nodes.tls()).build()?;

    let guard = locks.mutex("report").lock()?;

    nodes.wait_for_grants();
    guard.release()?;
    Ok(())
}
