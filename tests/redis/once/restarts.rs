//! What servers that have lost their data say of a job.

use std::time::SystemTime;

use devnodes::{Servers, eventually};
use quorlock::once::{Job, WhenUnsure};
use quorlock::{LockManager, Once, OnceError};

use crate::once::runs::{done_key, hourly, recorded, run};
use crate::support::*;

const TTL: std::time::Duration = secs(2);

/// Servers that have kept their data for ever.
fn start() -> (Servers, LockManager) {
    let servers = start_old();
    let locks = connected(with_quarantine(servers.urls(), TTL), 3);
    wait_for_all_votes(&locks);
    (servers, locks)
}

fn start_old() -> Servers {
    let servers = Servers::start(3).unwrap();
    for server in servers.iter() {
        Record::write_changed(server, |record| record.max_ttl = 2_000);
    }
    servers
}

fn wait_for_all_votes(locks: &LockManager) {
    eventually("all of them vote", || {
        drop(locks.mutex("vote").lock().unwrap());
        locks.check_nodes().iter().all(|it| it.failure.is_none())
    });
}

fn restart(servers: &Servers, number: usize, locks: &LockManager) {
    servers[number].restart_empty().unwrap();
    wait_for_all_votes(locks);
}

fn sure(locks: &LockManager) -> Job {
    hourly(locks).when_unsure(WhenUnsure::Refuse)
}

#[test]
fn m1_a_record_survives_restarts_of_all_servers_with_calls_between() -> TestResult {
    let (servers, locks) = start();
    assert_matches!(run(&sure(&locks)), Ok(Once::Ran(_)));
    let first = servers[0].get(done_key("report"));
    for number in 0..3 {
        restart(&servers, number, &locks);
        assert_eq!(recorded(&servers, "report"), 2);

        assert_matches!(run(&sure(&locks)), Ok(Once::Done(_)));

        assert_eq!(servers[number].get(done_key("report")), first);
        let life = servers[number].pttl(done_key("report"));
        assert!(life <= 7_200_000, "{life}");
    }
    Ok(())
}

#[test]
fn m2_servers_restarted_within_the_period_prove_no_missing_record() -> TestResult {
    let (servers, locks) = start();
    // One of them is not needed.
    restart(&servers, 0, &locks);
    assert_matches!(run(&sure(&locks)), Ok(Once::Ran(_)));

    del_all(&servers, &done_key("report"));
    restart(&servers, 1, &locks);
    let found = run(&sure(&locks));
    let Err(OnceError::Unsure { nodes }) = &found else {
        panic!("{found:?}")
    };
    assert_eq!(nodes.len(), 3);
    assert_contains(found.unwrap_err(), "nothing recorded, data kept for ");
    assert_matches!(
        run(&hourly(&locks).at_most_once()),
        Err(OnceError::Unsure { .. })
    );
    // An order that is newer than the restarts.
    let order = locks.once("payment").keep(secs(600)).at_most_once();
    assert_matches!(run(&order), Err(OnceError::Unsure { .. }));
    eventually("the order is newer", || {
        run(&order.clone().made_at(SystemTime::now())).is_ok()
    });
    assert_eq!(recorded(&servers, "report"), 0);

    // Late rather than never.
    assert_matches!(run(&hourly(&locks)), Ok(Once::Ran(_)));
    assert_matches!(run(&sure(&locks)), Ok(Once::Done(_)));
    Ok(())
}

#[test]
fn m2_an_order_older_than_its_records_is_unsure() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    let now = SystemTime::now();
    let order = |age| {
        locks
            .once("order")
            .keep(secs(60))
            .made_at(now - age)
            .at_most_once()
    };
    let fired = |age| locks.once("fired").fire_time(now - age).at_most_once();
    assert_matches!(run(&order(secs(61))), Err(OnceError::Unsure { .. }));
    assert_matches!(run(&fired(secs(86_400))), Err(OnceError::Unsure { .. }));
    assert_matches!(run(&order(secs(30))), Ok(Once::Ran(_)));
    assert_matches!(run(&fired(secs(80_000))), Ok(Once::Ran(_)));
    assert_eq!(recorded(&servers, "order"), 3);
    Ok(())
}

/// Two of three are old, and one of them refused the lock: only the new one and an old one have granted it.
#[test]
fn m2_a_job_lock_with_a_new_server_is_extended_before_the_last_look() -> TestResult {
    let servers = start_old();
    let (proxies, urls) = proxies(&servers);
    let locks = connected(with_quarantine(urls, TTL), 3);
    wait_for_all_votes(&locks);
    restart(&servers, 0, &locks);
    let delay = ms(60);
    proxies.iter().for_each(|it| it.set_delay(delay));
    // Gone when an extension comes, which is two round trips later.
    set_px(&servers[1], "report", "another's", 100);
    assert_matches!(run(&sure(&locks)), Ok(Once::Ran(_)));
    del_all(&servers, &done_key("report"));

    // Where it stays, too few old servers have our lock.
    set_px(&servers[1], "report", "another's", 600_000);
    assert_matches!(run(&sure(&locks)), Err(OnceError::Unsure { .. }));
    Ok(())
}

#[test]
fn m2_emptied_servers_do_not_prove_a_missing_record() -> TestResult {
    let (servers, locks) = start();
    assert_matches!(run(&sure(&locks)), Ok(Once::Ran(_)));
    let empty = |number: usize| {
        servers[number].command(&["FLUSHALL"]).unwrap();
        wait_for_all_votes(&locks);
    };
    empty(0);
    assert_matches!(run(&sure(&locks)), Ok(Once::Done(_)));
    del_all(&servers, &done_key("report"));
    empty(1);
    assert_matches!(run(&sure(&locks)), Err(OnceError::Unsure { .. }));
    Ok(())
}
