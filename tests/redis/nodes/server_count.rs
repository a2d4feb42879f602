//! A server's record keeps the number of servers of its programs. Programs with another number are found, or refused.

use devnodes::Servers;
use quorlock::error::{NodeAnswer, NodeFailure, NodeFinding};
use quorlock::{AcquireError, Builder, LockManager};

use crate::operations::log_lines;
use crate::support::*;

/// A program with the first `nodes` of these servers. They have kept everything for ever.
fn program(servers: &Servers, nodes: usize) -> Builder {
    for server in servers.iter().filter(|server| !server.exists(RECORD)) {
        Record::of_ever(server).write(server);
    }
    builder(servers.iter().take(nodes).map(|server| server.url())).quarantine(true)
}

/// Takes a lock, so that its number is written.
fn used(builder: Builder) -> LockManager {
    let locks = builder.build().unwrap();
    drop(locks.mutex("used").lock().unwrap());
    locks
}

fn other(there: u64, here: u64) -> NodeFinding {
    NodeFinding::OtherNodes { there, here }
}

/// What a program finds that starts now, of its first servers.
fn found(builder: Builder) -> Vec<Option<NodeFinding>> {
    let rows = builder.build().unwrap().check_nodes();
    rows.into_iter().map(|mut row| row.findings.pop()).collect()
}

/// The number in the record of each server; 0 if no program has used it.
fn numbers(servers: &Servers) -> Vec<String> {
    servers
        .iter()
        .map(|server| record(server).map_or_else(|| "0".to_owned(), |record| record.servers))
        .collect()
}

/// With every server asked: a lock is won without the last ones.
fn eventually_numbers(servers: &Servers, expected: &[&str]) {
    devnodes::eventually("all servers have been synced", || {
        numbers(servers) == expected
    });
}

#[test]
fn h26_a_program_with_two_servers_more_is_found_and_refused_by_strict() -> TestResult {
    let servers = Servers::start(5)?;
    let three = used(program(&servers, 3).strict(true));
    eventually_numbers(&servers, &["3", "3", "3", "0", "0"]);

    let five = program(&servers, 5).strict(true).build()?;
    let err = five.mutex("report").try_lock().unwrap_err();
    let refused = NodeAnswer::Failed(NodeFailure::Disqualified {
        finding: other(3, 5),
    });
    for row in &err.nodes()[..3] {
        assert_eq!(row.answer, refused, "{err}");
    }
    // Without it is no outage, and whoever was there first is not disturbed.
    let expected = [vec![Some(other(3, 5)); 3], vec![None; 2]].concat();
    assert_eq!(found(program(&servers, 5)), expected);
    drop(used(program(&servers, 5)));
    eventually_numbers(&servers, &["3", "3", "3", "5", "5"]);
    drop(three.mutex("report").lock()?);
    drop(used(program(&servers, 3).strict(true)));
    Ok(())
}

#[test]
fn h26_the_number_follows_programs_with_one_server_more_or_less() -> TestResult {
    let servers = Servers::start(5)?;
    let mut before = used(program(&servers, 3).strict(true));
    for (number, last) in [(4, 3), (5, 4), (4, 5), (3, 4)] {
        eventually_numbers(&servers, &numbers_of(last, &numbers(&servers)));
        let record_version = || record(&servers[0]).unwrap().record_version;
        let drawn = record_version();
        let finding = Some(other(last as u64, number as u64));
        assert_eq!(found(program(&servers, number))[0], finding);

        let next = used(program(&servers, number).strict(true));

        eventually_numbers(&servers, &numbers_of(number, &numbers(&servers)));
        assert_eq!(found(program(&servers, number))[0], None);
        // Two deployments at a time exclude each other, and do not make each other sync the servers again.
        for (locks, rival) in [(&before, &next), (&next, &before)] {
            let held = locks.mutex("report").lock()?;
            let err = rival.mutex("report").try_lock().unwrap_err();
            assert!(matches!(err, AcquireError::Held { .. }), "{err}");
            held.release()?;
        }
        assert_eq!(record_version(), drawn);
        before = next;
    }
    Ok(())
}

/// The first `number` servers have it, and the others what they had.
fn numbers_of(number: usize, before: &[String]) -> Vec<&'static str> {
    const NUMBERS: [&str; 6] = ["0", "1", "2", "3", "4", "5"];
    let of = |(at, before): (usize, &String)| {
        if at < number {
            NUMBERS[number]
        } else {
            NUMBERS[before.parse::<usize>().unwrap_or(0)]
        }
    };
    before.iter().enumerate().map(of).collect()
}

/// As after a change of servers for which all programs were stopped.
#[test]
fn h26_a_record_that_is_deleted_takes_any_number() -> TestResult {
    let servers = Servers::start(5)?;
    drop(used(program(&servers, 3)));
    del_all(&servers, RECORD);
    drop(used(program(&servers, 5).strict(true)));
    eventually_numbers(&servers, &["5"; 5]);
    Ok(())
}

#[test]
fn h26_the_log_warns_of_programs_with_two_servers_more_or_less() -> TestResult {
    for (before, warns) in [(5, 3), (4, 0)] {
        let servers = Servers::start(5)?;
        drop(used(program(&servers, before)));
        eventually_numbers(&servers, &numbers_of(before, &numbers(&servers)));

        let mut child = child(
            "operations::log_lines::child_that_looks_at_its_nodes",
            &servers.urls()[..3],
        );
        assert_eq!(child.hear(), "looked");
        child.go_on();
        let lines = log_lines::warnings(&child);

        let is_right =
            |line: &&String| line.contains("other programs have 5 servers and this one has 3: two");
        assert_eq!(lines.iter().filter(is_right).count(), warns, "{lines:?}");
    }
    Ok(())
}
