//! Nodes that die, hang, come back and forget.

use std::thread;

use devnodes::{Server, Servers, eventually};
use quorlock::ReleaseError;
use quorlock::error::{NodeAnswer, NodeFailure};

use crate::support::*;

/// RACE: a program's first command waits on each server until that is synced; a majority grants the lock meanwhile.
#[test]
fn the_first_lock_of_a_program_comes_to_a_server_that_is_synced_late() -> TestResult {
    let (servers, locks) =
        start_connected(3, |urls| builder(urls).response_timeout(secs(60)).ttl(LONG));
    servers[2].pause()?;

    let guard = locks.mutex("report").renew(false).lock()?;

    servers[2].resume()?;
    eventually("the lock stands on all servers", || {
        servers[2].exists("report")
    });
    guard.release()?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a10_paused_nodes_delay_no_lock_while_a_majority_answers() -> TestResult {
    let servers = Servers::start(5)?;
    // So long that a round which waited for a paused node would never end here.
    let locks = connected(
        builder(servers.urls()).response_timeout(secs(60)).ttl(LONG),
        5,
    );

    servers[1].pause()?;
    servers[4].pause()?;
    let worker = thread::spawn({
        let locks = locks.clone();
        move || {
            for i in 0..50 {
                let guard = locks.mutex(format!("report {}", i % 3)).lock().unwrap();
                assert!(3 <= guard.release().unwrap().confirmed);
            }
        }
    });
    join(worker);

    servers[1].resume()?;
    servers[4].resume()?;
    nothing_is_left(&servers);
    assert_eq!(locks.stats().rounds_without_quorum, 0);
    Ok(())
}

#[test]
fn e4_a_resumed_node_gets_its_queued_releases() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| builder(urls).ttl(LONG));
    let guards: Vec<_> = (0..20)
        .map(|i| locks.mutex(format!("old {i}")).lock())
        .collect::<Result<_, _>>()?;
    eventually("they are on all nodes", || {
        servers.iter().all(|it| lock_keys(it).len() == 20)
    });

    servers[2].pause()?;
    drop(guards);
    for i in 0..20 {
        drop(locks.mutex(format!("new {i}")).lock()?);
    }
    assert!(servers.iter().take(2).all(|it| lock_keys(it).is_empty()));
    let connections = locks.stats().connections;
    servers[2].resume()?;

    nothing_is_left(&servers);
    // Fencing counters stay.
    assert!(20 <= servers[2].key_count());
    // Not because it connected anew.
    assert_eq!(locks.stats().connections, connections);
    Ok(())
}

#[test]
fn e4_releases_that_do_not_fit_into_the_socket_are_not_lost() -> TestResult {
    // A busy machine may stop the server for longer than a second: its connection stays.
    let patient = |urls: Vec<String>| builder(urls).ttl(LONG).response_timeout(secs(30));
    let (servers, locks) = start_connected(3, patient);
    // 250 releases of 60 KiB are more than the buffers of both ends hold.
    let name = |i: usize| format!("{i:03}{}", "x".repeat(60 * 1024));
    let mut guards: Vec<_> = (0..250)
        .map(|i| locks.mutex(name(i)).lock())
        .collect::<Result<_, _>>()?;
    eventually("they are on all nodes", || {
        servers.iter().all(|it| 500 <= it.key_count())
    });

    servers[0].pause()?;
    guards.drain(..).for_each(drop);
    servers[0].resume()?;

    // What stays are the counters and the record.
    eventually("all are released", || {
        servers.iter().all(|it| it.key_count() == 252)
    });
    assert!(locks.mutex("report").try_lock()?.is_valid());
    assert_eq!(locks.stats().connection_failures, 0);
    Ok(())
}

#[test]
fn e7_an_unconfirmed_release_is_reported_and_sent_later() -> TestResult {
    let (servers, locks) = start_connected(3, impatient);
    let guard = lock_in_the_end(&locks, "report");
    eventually("it is on all nodes", || servers.holders("report") == 3);

    servers[1].pause()?;
    servers[2].pause()?;
    let err = guard.release().unwrap_err();

    let ReleaseError::NotConfirmed { confirmed, nodes } = &err else {
        panic!("{err:?}")
    };
    assert!(*confirmed <= 1);
    assert_eq!(nodes.len(), 3);
    let timed_out = NodeAnswer::Failed(NodeFailure::TimedOut);
    assert!(nodes[1..].iter().all(|it| it.answer == timed_out), "{err}");
    assert_eq!(locks.stats().releases_unconfirmed, 1);
    servers[1].resume()?;
    servers[2].resume()?;
    nothing_is_left(&servers);
    assert_eq!(locks.stats().connection_failures, 0);
    Ok(())
}

#[test]
fn e6_dropping_a_guard_while_all_nodes_are_paused_returns() -> TestResult {
    let (servers, locks) = start_connected(3, impatient);
    let guard = lock_in_the_end(&locks, "report");
    eventually("it is on all nodes", || servers.holders("report") == 3);

    servers.iter().try_for_each(Server::pause)?;
    join(thread::spawn(move || drop(guard)));

    servers.iter().try_for_each(Server::resume)?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn connections_cut_during_a_round_leave_no_key() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, |urls| builder(urls).ttl(LONG));
    let before: Vec<_> = servers.iter().map(scripts_run).collect();

    // All three grant it, and two of the answers never come.
    proxies[0].hold_replies();
    proxies[1].hold_replies();
    let report = locks.mutex("report");
    let attempt = thread::spawn(move || report.try_lock());
    eventually("all nodes have granted", || {
        servers
            .iter()
            .zip(&before)
            .all(|(it, before)| *before < scripts_run(it))
            && servers.holders("report") == 3
    });
    for proxy in &proxies[..2] {
        // What is held back is lost with its connection; later ones work.
        proxy.cut();
        proxy.release_replies();
    }

    let err = join(attempt).unwrap_err();
    assert_no_quorum(&err);
    for node in 0..2 {
        assert_matches!(failure(&err, node), NodeFailure::Disconnected { .. });
    }
    nothing_is_left(&servers);
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

#[test]
fn a_release_of_an_unreachable_node_is_carried_over_to_its_next_connection() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, |urls| builder(urls).ttl(LONG));
    let guard = locks.mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);

    proxies[0].refuse(true);
    proxies[0].cut();
    assert_eq!(guard.release()?.confirmed, 2);
    for i in 0..5 {
        drop(locks.mutex(format!("later {i}")).lock()?);
    }
    let left = servers[0].pttl("report");
    assert!(300_000 < left, "only its ttl would free it");
    proxies[0].refuse(false);

    servers.wait_until_free("report")?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn g2_a_node_behind_a_dead_link_delays_no_lock_and_reconnects() -> TestResult {
    let (servers, proxies, locks) = start_behind_proxies(3, impatient);

    proxies[1].black_hole(true);
    for i in 0..10 {
        drop(lock_in_the_end(&locks, &format!("report {i}")));
    }
    proxies[1].black_hole(false);
    proxies[1].cut();

    eventually("it connects again", || 4 <= locks.stats().connections);
    servers[2].kill()?;
    drop(lock_in_the_end(&locks, "report"));
    nothing_is_left(&servers);
    Ok(())
}
