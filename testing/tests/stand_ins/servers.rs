//! The test of a user, on stand-ins and on servers.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::thread;

use devnodes::{Group, PATIENCE, Servers, eventually};
use quorlock_testing::{Nodes, NotStandIns};

use crate::TestResult;

const VARIABLE: &str = "QUORLOCK_TEST_NODES";

/// What a user writes once, for both.
fn test_of_a_user() -> TestResult {
    let nodes = Nodes::from_env(3)?;
    let locks = nodes.manager().prefix(nodes.prefix("app:")).build()?;

    let other = nodes.hold("app:report");
    assert!(nodes.try_hold("app:report").is_none());
    assert!(locks.mutex("report").try_lock().unwrap_err().is_held());
    let report = locks.mutex("report");
    let waits = thread::spawn(move || report.try_lock_for(PATIENCE).map(drop));
    nodes.wait_until_waiting(1);
    drop(other);
    waits.join().unwrap()?;

    let guard = locks.mutex("report").try_lock_for(PATIENCE)?;
    eventually("all have it", || {
        nodes
            .holder("app:report")
            .is_some_and(|it| it.nodes == 3 && it.remaining.is_some())
    });
    let thief = nodes.lose("app:report");
    assert!(guard.extend(PATIENCE).is_err() && !guard.is_valid());
    nodes.expire("app:report");
    nodes.wait_until_free("app:report");
    drop(thief);

    let reader = nodes.hold_shared("app:book");
    locks.rw_lock("book").try_read()?.release()?;
    assert!(locks.rw_lock("book").try_write().is_err());
    assert_eq!(
        nodes
            .holder("app:book")
            .map(|it| it.label)
            .unwrap_or_default(),
        ""
    );
    let permits = [
        nodes.hold_permit("app:mail", 2),
        nodes.hold_permit("app:mail", 2),
    ];
    assert!(
        locks
            .semaphore("mail", 2)
            .try_acquire()
            .unwrap_err()
            .is_held()
    );
    drop((reader, permits));
    let permit = locks.semaphore("mail", 2).acquire()?;
    nodes.expire_permits("app:mail", 2);
    assert!(permit.extend(PATIENCE).is_err());
    locks.rw_lock("book").write()?.release()?;
    locks.semaphore("mail", 2).acquire()?.release()?;
    locks.shutdown();
    Ok(())
}

#[test]
fn the_test_of_a_user_runs_on_stand_ins() -> TestResult {
    assert!(std::env::var_os(VARIABLE).is_none());
    test_of_a_user()?;
    let nodes = Nodes::from_env(2)?;
    assert_eq!((nodes.are_stand_ins(), nodes.iter().count()), (Ok(()), 2));
    nodes.node(1)?.down();
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_on_servers() -> TestResult {
    test_of_a_user()?;
    let nodes = Nodes::from_env(3)?;
    let refused: NotStandIns = nodes.node(0).unwrap_err();
    assert_eq!(nodes.are_stand_ins(), Err(refused));
    let calls: [&dyn Fn(); 2] = [&|| nodes[0].down(), &|| assert_eq!(nodes.iter().count(), 0)];
    for call in calls {
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
        assert!(
            panics
                .downcast_ref::<String>()
                .is_some_and(|it| it.contains(VARIABLE))
        );
    }
    assert_eq!((nodes.urls().len(), nodes.commands()), (3, 0));
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_with_wrong_nodes() {
    let err = Nodes::from_env(3).unwrap_err();
    assert!(err.to_string().contains(VARIABLE), "{err}");
}

/// Runs a test of this file with these nodes.
fn passes(test: &str, nodes: &str) -> std::io::Result<bool> {
    let mut child = Command::new(std::env::current_exe()?);
    child
        .args(["--exact", &format!("servers::{test}"), "--ignored"])
        .env(VARIABLE, nodes)
        .stdin(Stdio::null());
    let out = child.output()?;
    let said = String::from_utf8_lossy(&out.stdout);
    print!("{said}");
    Ok(out.status.success() && said.contains("1 passed"))
}

#[test]
fn the_test_of_a_user_runs_on_servers_leaves_no_lock_there_and_faults_are_refused() -> TestResult {
    let servers = Servers::start(3)?;
    assert!(passes("child_on_servers", &servers.urls().join(", "))?);
    for url in servers.urls() {
        let mut connection = redis::Client::open(url)?.get_connection()?;
        let keys: BTreeSet<String> = redis::cmd("KEYS").arg("*").query(&mut connection)?;
        // What notes who waits expires within seconds, and counters within hours.
        let beside = [":waiters", ":turn", "fence"];
        let stay =
            |key: &&String| key.contains("app:") && !beside.iter().any(|it| key.contains(it));
        assert_eq!(
            keys.iter().filter(stay).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{keys:?}"
        );
    }
    Ok(())
}

#[test]
fn the_test_of_a_user_runs_where_a_node_is_several_servers_whose_url_has_commas() -> TestResult {
    let (group, servers) = (Group::start(1)?, Servers::start(2)?);
    let url = group.replicated_url();
    assert!(url.contains(','));
    let urls: Vec<_> = [url].into_iter().chain(servers.urls()).collect();
    assert!(passes("child_on_servers", &urls.join(","))?);
    Ok(())
}

#[test]
fn wrong_nodes_are_said_to_be_wrong() -> TestResult {
    assert!(passes("child_with_wrong_nodes", "http://nowhere")?);
    Ok(())
}
