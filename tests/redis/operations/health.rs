//! What a look at the nodes finds, on servers with something wrong.

use devnodes::{Clock, Proxy, Server, Servers, eventually};
use quorlock::LockManager;
use quorlock::error::{NodeCheck, NodeFailure, NodeFinding};

use crate::operations::log_lines;
use crate::support::*;

/// Makes `server` a replica of `primary` and promotes it.
fn promote(server: &Server, primary: &Server) -> TestResult {
    replicate(server, primary)?;
    server.command(&["REPLICAOF", "NO", "ONE"])?;
    Ok(())
}

/// Makes `server` a replica of `primary`, and waits until it has everything.
fn replicate(server: &Server, primary: &Server) -> TestResult {
    primary.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"])?;
    server.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()])?;
    eventually("it is a replica", || {
        server.info("master_link_status").as_deref() == Some("up")
    });
    Ok(())
}

fn row(checks: &[NodeCheck], node: usize) -> (Option<NodeFailure>, Vec<NodeFinding>) {
    (checks[node].failure.clone(), checks[node].findings.clone())
}

/// Asserts that the node has failed with a text that begins with these words.
#[track_caller]
fn assert_fails(check: &NodeCheck, words: &str) {
    let failure = check.failure.as_ref();
    assert!(failure.is_some_and(|it| says(it, words)), "{check}");
}

/// What a strict manager says of it.
fn disqualified(finding: NodeFinding) -> Option<NodeFailure> {
    Some(NodeFailure::Disqualified { finding })
}

/// With quarantine, as the processes that look at them.
fn connected_to_vouched(servers: &Servers) -> LockManager {
    let locks = crate::topology::replicated::vouched(builder(servers.urls()));
    connect(&locks, 2);
    locks
}

#[test]
fn b4_a_promoted_replica_votes_and_is_found_and_logged() -> TestResult {
    needs!(Settings);
    let (servers, primary) = (Servers::start(2)?, Server::start()?);
    promote(&servers[0], &primary)?;
    let locks = connected_to_vouched(&servers);

    let checks = locks.check_nodes();
    assert_eq!(row(&checks, 0), (None, vec![NodeFinding::Promoted]));
    assert!(checks[1].is_fine(), "{checks:?}");
    // Both are needed.
    assert!(locks.mutex("report").try_lock()?.is_valid());

    servers[1].command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])?;
    let mut child = child(
        "operations::log_lines::child_that_looks_at_its_nodes",
        &servers.urls(),
    );
    assert_eq!(child.hear(), "looked");
    for server in &servers {
        server.command(&["CLIENT", "KILL", "SKIPME", "yes"])?;
    }
    child.go_on();
    // Once each, although it has connected twice.
    let lines = log_lines::warnings(&child);
    let [first, second] = &lines[..] else {
        panic!("{lines:?}")
    };
    for (line, node, words) in [
        (first, "WARN n0: ", "has been promoted"),
        (second, "WARN n1: ", "would evict locks"),
    ] {
        assert!(line.starts_with(node) && line.contains(words), "{line}");
    }
    Ok(())
}

/// As an operator does, or a provider, while programs are connected.
fn set_to_evict(server: &Server) {
    for (option, value) in [("maxmemory-policy", "volatile-ttl"), ("maxmemory", "100mb")] {
        server.command(&["CONFIG", "SET", option, value]).unwrap();
    }
}

#[test]
fn b5_a_check_finds_settings_changed_since_the_login() -> TestResult {
    needs!(Settings);
    let servers = Servers::start(3)?;
    let replica = Server::start()?;
    let locks = connected(builder(servers.urls()), 3);
    let strict = connected(builder(servers.urls()).strict(true), 3);
    assert!(locks.check_nodes().iter().all(NodeCheck::is_fine));
    set_to_evict(&servers[0]);
    servers[1].command(&["CONFIG", "SET", "min-replicas-to-write", "1"])?;
    let port = servers[2].port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port])?;
    eventually("it is a replica", || {
        servers[2].info("connected_slaves").as_deref() == Some("1")
    });

    for locks in [&locks, &strict] {
        let checks = locks.check_nodes();
        assert_fails(&checks[0], "may evict locks that are held");
        assert_fails(&checks[1], "refuses writes");
        let finding = NodeFinding::HasReplicas { count: 1 };
        let expected = if std::ptr::eq(locks, &strict) {
            (disqualified(finding), vec![])
        } else {
            (None, vec![finding])
        };
        assert_eq!(row(&checks, 2), expected);
    }
    let err = locks.mutex("report").try_lock().unwrap_err();
    assert!(says(failure(&err, 0), "may evict locks"), "{err}");
    Ok(())
}

#[test]
fn b5_a_missing_key_beside_a_present_record_shows_eviction() -> TestResult {
    needs!(Settings);
    let servers = Servers::start(3)?;
    let locks = connected(with_ttl(servers.urls(), secs(9)), 3);
    let guard = lock_in_the_end(&locks, "report");
    eventually("all are up", || locks.stats().nodes.iter().all(|it| it.up));
    set_to_evict(&servers[0]);

    servers[0].command(&["DEL", "report"])?;

    eventually("the holder has no vote of the server that evicts", || {
        !locks.stats().nodes[0].up
    });
    assert!(guard.is_valid());
    Ok(())
}

#[test]
fn b10_a_check_finds_several_servers_behind_one_address() -> TestResult {
    needs!(Settings);
    let servers = Servers::start(2)?;
    let proxy = || Proxy::start(servers[0].addr()).unwrap();
    let (balancer, alone) = (proxy(), proxy());
    balancer.spread_to(servers[1].addr());
    let locks = builder([balancer.url(), alone.url()]).build()?;

    let checks = locks.check_nodes();

    assert_fails(&checks[0], "several servers by turns");
    assert!(checks[1].is_fine(), "{}", checks[1]);
    assert!(locks.mutex("report").try_lock().is_err());
    Ok(())
}

#[test]
fn a_check_shows_version_uptime_round_trip_and_write_errors() -> TestResult {
    needs!(Settings);
    let servers = Servers::start(2)?;
    let restricted = add_user(&servers[1], "locks", "~* &* +@all -zadd");
    let proxy = Proxy::start(servers[0].addr())?;
    proxy.set_delay(ms(50));
    let locks = connected(builder([proxy.url(), restricted]), 2);
    servers[1].command(&["FLUSHALL"])?;

    let checks = locks.check_nodes();

    let [far, near] = &checks[..] else {
        panic!("{checks:?}")
    };
    assert!(far.round_trip.is_some_and(|it| ms(50) <= it), "{far:?}");
    assert!(near.round_trip.is_some_and(|it| it < secs(60)), "{near:?}");
    for check in &checks {
        assert!(check.is_fine(), "locks do without: {check}");
        let version = check.version.as_deref().unwrap_or_default();
        let is_known = |it: &&str| version.starts_with(*it);
        assert!(["Redis ", "Valkey "].iter().any(is_known), "{version}");
        assert!(check.uptime.is_some_and(|it| it < secs(600)), "{check:?}");
    }
    servers[0].command(&["CONFIG", "SET", "maxmemory", "1"])?;
    servers[1].command(&["ACL", "SETUSER", "locks", "-set"])?;
    let [full, refuses] = &locks.check_nodes()[..] else {
        panic!("two nodes")
    };
    assert_fails(full, "out of memory");
    assert_fails(refuses, "not permitted");
    // Servers before 7.0 do not name it.
    let names = ["'set'", "@user_script:"];
    let text = refuses.to_string();
    assert!(names.iter().any(|it| text.contains(it)), "{text}");
    let keys = servers[1].command(&["KEYS", "*"])?;
    assert_eq!(keys.as_array(), Some(&[][..]), "looking sets no key");
    locks.shutdown();
    for check in locks.check_nodes() {
        assert_eq!((check.round_trip, check.version), (None, None));
    }
    Ok(())
}

#[test]
fn b4_a_check_shows_each_finding_and_strict_refuses_servers_that_may_lose_locks() -> TestResult {
    needs!(Settings);
    needs!(ClosedPorts);
    let fresh = Server::start;
    let (fine, promoted, would_evict, evicts, has_replica) =
        (fresh()?, fresh()?, fresh()?, fresh()?, fresh()?);
    let (unverifiable, replica, down) = (fresh()?, fresh()?, fresh()?);
    let silent = without_hello(Server::builder()).start()?;
    let double = Proxy::start(fine.addr())?;
    promote(&promoted, &has_replica)?;
    replicate(&replica, &has_replica)?;
    eventually("the other one has left it", || {
        has_replica.info("connected_slaves").as_deref() == Some("1")
    });
    for server in [&would_evict, &evicts] {
        server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"])?;
    }
    evicts.command(&["CONFIG", "SET", "maxmemory", "100mb"])?;
    down.kill()?;
    let mut urls = [&fine, &promoted, &would_evict, &evicts]
        .map(Server::url)
        .to_vec();
    urls.extend([&has_replica, &replica, &silent, &down].map(Server::url));
    urls.push(add_user(&unverifiable, "locks", "~* &* +@all -info"));
    urls.push(double.url());
    let ahead = Clock::available()
        .then(|| Server::builder().stepped_clock().start())
        .transpose()?;
    if let Some(ahead) = &ahead {
        ahead.step_clock_forward(secs(7_200))?;
        urls.push(ahead.url());
    }
    let locks = builder(&urls).build()?;

    let mut checks = locks.check_nodes();
    eventually("all have been asked", || {
        checks = locks.check_nodes();
        let is_double =
            |it: &&NodeCheck| matches!(it.failure, Some(NodeFailure::SameServer { .. }));
        urls.len() - 4 <= checks.iter().filter(|it| it.failure.is_none()).count()
            && checks.iter().filter(is_double).count() == 1
    });

    let shown: Vec<_> = checks.iter().map(ToString::to_string).collect();
    let all = shown.join("\n");
    let policy = "volatile-ttl".to_owned();
    let findings = [
        (1, NodeFinding::Promoted),
        (2, NodeFinding::WouldEvict { policy }),
        (4, NodeFinding::HasReplicas { count: 1 }),
        (6, NodeFinding::NoNotices),
        (8, NodeFinding::Unverifiable),
    ];
    for (node, finding) in findings.clone() {
        assert_eq!(row(&checks, node), (None, vec![finding]), "{all}");
    }
    let evicts_held = "may evict locks that are held, as its maxmemory-policy is volatile-ttl; ";
    for (node, words) in [(3, evicts_held), (5, "a replica"), (7, "cannot connect")] {
        assert_fails(&checks[node], words);
        assert_eq!(checks[node].findings, [], "{all}");
    }
    // Whichever of the two came first has the vote.
    let same = |one: usize, other: usize| {
        row(&checks, one) == (None, vec![])
            && matches!(row(&checks, other), (Some(NodeFailure::SameServer { other }), _) if other.index() == one)
    };
    assert!(same(0, 9) || same(9, 0), "{all}");
    if ahead.is_some() {
        let (failure, findings) = row(&checks, 10);
        let [NodeFinding::ClockDiffers { by, ahead: true }] = findings[..] else {
            panic!("{all}")
        };
        assert!(failure.is_none(), "{all}");
        assert!(secs(7_000) < by && by < secs(7_201), "{all}");
    }
    let fine = checks.iter().filter(|it| it.is_fine());
    assert_eq!(fine.count(), 1, "the voting one of the pair: {all}");

    let begins = |node: usize, server: &Server, rest: &str| {
        let line = format!("n{node} ({}): {rest}", shown_address(server));
        assert!(shown[node].starts_with(&line), "{}\n{line}", shown[node]);
    };
    begins(1, &promoted, "votes; was a replica and has been promoted");
    begins(2, &would_evict, "votes; would evict locks");
    begins(3, &evicts, "no vote: may evict locks");
    begins(4, &has_replica, "votes; has replicas, 1 now");
    begins(5, &replica, "no vote: a replica");
    begins(6, &silent, "votes; announces no releases");
    begins(7, &down, "no vote: cannot connect");
    begins(8, &unverifiable, "votes; forbids INFO");
    for line in &shown {
        assert!(!line.contains('\n') && !line.contains("pw"), "{line}");
    }
    let indices = checks.iter().map(|it| it.node.index());
    assert!(indices.eq(0..urls.len()));

    let strict = impatient(urls.clone()).strict(true).build()?;
    let is_late = |it: &NodeCheck| {
        matches!(
            it.failure,
            Some(NodeFailure::TimedOut | NodeFailure::Connect { .. })
        )
    };
    eventually("all that are up have been asked", || {
        strict.check_nodes().iter().filter(|it| is_late(it)).count() == 1
    });
    let refused = strict.check_nodes();
    for (node, finding) in findings {
        // That costs no lock.
        let expected = if finding == NodeFinding::NoNotices {
            (None, vec![finding])
        } else {
            (disqualified(finding), vec![])
        };
        assert_eq!(row(&refused, node), expected);
    }
    assert_no_quorum(&strict.mutex("report").try_lock().unwrap_err());
    // And one that is set right votes again.
    replica.command(&["REPLICAOF", "NO", "ONE"])?;
    eventually("it votes", || strict.check_nodes()[4].is_fine());

    locks.shutdown();
    let after = locks.check_nodes();
    assert_eq!(after.len(), urls.len());
    for node in 0..after.len() {
        let expected = (Some(NodeFailure::ShutDown), vec![]);
        assert_eq!(row(&after, node), expected);
    }
    Ok(())
}

#[test]
fn a_check_shows_append_only_servers_and_their_max_ttl() -> TestResult {
    needs!(Settings);
    let servers = [Server::start()?, Server::builder().appendonly().start()?];
    let with = |max_ttl| {
        let builder = crate::builder_for(servers.iter().map(Server::url));
        let builder = builder.max_ttl(max_ttl).response_timeout(secs(2));
        builder.build().unwrap()
    };
    let of_an_hour = with(secs(3_600));
    eventually("both are told", || {
        let _ = of_an_hour.mutex("report").try_lock();
        servers.iter().all(|it| record(it).is_some())
    });
    let ours = with(secs(20));

    eventually("both can be asked", || {
        ours.check_nodes().iter().all(|it| it.append_only.is_some())
    });

    let checks = ours.check_nodes();
    for (check, append_only) in checks.iter().zip([false, true]) {
        assert_eq!(check.append_only, Some(append_only), "{check:?}");
        assert_eq!(check.max_ttl, Some(secs(3_600)), "{check:?}");
    }
    // A manager of the other kind says so.
    let differs = Some(NodeFailure::QuarantineDiffers { on_server: true });
    eventually("both are known", || {
        let other = builder(servers.iter().map(Server::url)).build().unwrap();
        other.check_nodes().iter().all(|it| it.failure == differs)
    });
    Ok(())
}
