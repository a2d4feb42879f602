//! What programs are set up with: other servers, databases, proxies, names, files on disk.

use std::thread;

use devnodes::{Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeCheck, NodeFailure};

use crate::support::*;
use crate::waiting::lists::wait_in_thread;

#[test]
fn b7_clients_with_different_nodes_do_not_exclude_each_other() -> TestResult {
    // A hazard that is documented, and shown here.
    let servers = Servers::start(5)?;
    let urls = servers.urls();
    let (left, right) = (builder(&urls[..3]).build()?, builder(&urls[2..]).build()?);

    let first = left.mutex("report").lock()?;
    let second = right.mutex("report").lock()?;

    assert!(first.is_valid() && second.is_valid());
    Ok(())
}

/// Whoever uses a server first decides for all.
#[test]
fn h27_a_client_with_another_kind_of_quarantine_is_refused_and_others_go_on() -> TestResult {
    for on_server in [true, false] {
        let servers = Servers::start(3)?;
        let first = builder(servers.urls()).quarantine(on_server).build()?;
        let _vouched = first.admin().vouch();
        let guard = lock_in_the_end(&first, "report");

        let second = builder(servers.urls())
            .quarantine(!on_server)
            .outage_timeout(secs(0))
            .build()?;
        let err = second.mutex("another").lock().unwrap_err();
        let differs = NodeFailure::QuarantineDiffers { on_server };
        assert!(2 <= failures(&err, &differs.to_string()), "{err}");
        assert_eq!(servers.holders("another"), 0);
        assert_eq!(servers.holders(fence("another")), 0);

        guard.extend(secs(20))?;
        guard.release()?;
        // They were emptied, and another kind of program came first.
        let origin = if on_server { "off" } else { "old" };
        for server in servers.iter().take(2) {
            Record::write_changed(server, |it| it.origin = origin.to_owned());
        }
        let differs = NodeAnswer::Failed(NodeFailure::QuarantineDiffers {
            on_server: !on_server,
        });
        let _err = error_in_the_end(&first, "report", |err| *answer(err, 0) == differs);
    }
    Ok(())
}

#[test]
fn b8_a_proxy_that_passes_connections_on_changes_nothing() -> TestResult {
    let (servers, proxies, through) = start_behind_proxies(3, |urls| builder(urls).ttl(LONG));
    let direct = manager(&servers);
    let mut guard = through.mutex("report").lock()?;
    for (holder, other) in [(&through, &direct), (&direct, &through)] {
        assert_held(&other.mutex("report").try_lock().unwrap_err());
        let refusals = other.stats().rounds_held;
        let waiter = wait_in_thread(other.mutex("report"));
        eventually("it waits", || refusals < other.stats().rounds_held);
        guard.release()?;
        guard = join(waiter)?;
        assert_held(&holder.mutex("report").try_lock().unwrap_err());
    }
    guard.release()?;
    nothing_is_left(&servers);
    // One each: everything goes over the same connection, in order.
    assert!(proxies.iter().all(|it| it.connections() == 1));
    Ok(())
}

#[test]
fn b9_a_kill_loses_no_lock_with_an_append_only_file() -> TestResult {
    needs!(DataOnDisk);
    for fsync in ["always", "no"] {
        let servers = Servers::start_with(3, |it| it.appendonly().arg("--appendfsync", fsync))?;
        let locks = builder(servers.urls()).ttl(LONG).build()?;
        let guard = locks.mutex("report").lock()?;
        eventually("it is on all nodes", || servers.holders("report") == 3);

        servers.iter().try_for_each(Server::kill)?;
        for server in &servers {
            server.restart()?;
        }

        assert_eq!(servers.holders("report"), 3, "{fsync}");
        assert_held(&manager(&servers).mutex("report").try_lock().unwrap_err());
        assert!(guard.is_valid());
    }
    Ok(())
}

#[test]
fn g3_the_addresses_of_one_name_are_one_node() -> TestResult {
    // Usually ::1 and 127.0.0.1, of which the servers have only the second.
    let servers = Servers::start(3)?;
    let urls: Vec<_> = servers
        .iter()
        .map(|it| it.url().replace("127.0.0.1", "localhost"))
        .collect();
    let locks = builder(&urls).build()?;

    let guard = lock_in_the_end(&locks, "report");
    eventually("each of them has granted it", || {
        servers.holders("report") == 3
    });
    guard.release()?;

    let checks = locks.check_nodes();
    assert_eq!(checks.len(), 3);
    assert!(checks.iter().all(NodeCheck::is_fine), "{checks:?}");
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn g3_a_name_that_cannot_be_resolved_costs_its_own_vote_and_no_time() -> TestResult {
    let servers = Servers::start(2)?;
    // That there is no such name is reserved; how long it takes to find out is the system's affair.
    let urls = [
        "redis://no-such-server.invalid".to_owned(),
        servers[0].url(),
        servers[1].url(),
    ];
    let options = builder(&urls)
        .response_timeout(secs(60))
        .connect_timeout(secs(60))
        .ttl(LONG)
        .shutdown_grace(ms(0));
    let locks = options.build()?;

    // A call that waits for the name would never end here.
    let mutexes: Vec<_> = (0..20)
        .map(|i| locks.mutex(format!("report {i}")))
        .collect();
    join(thread::spawn(move || {
        for mutex in mutexes {
            mutex.lock().unwrap().release().unwrap();
        }
    }));

    nothing_is_left(&servers);
    servers[1].kill()?;
    let impatient = impatient(urls).shutdown_grace(ms(0)).build()?;
    let err = impatient.mutex("report").try_lock().unwrap_err();
    assert_no_quorum(&err);
    let row = failure(&err, 0);
    assert_matches!(row, NodeFailure::Connect { .. } | NodeFailure::TimedOut);
    Ok(())
}
