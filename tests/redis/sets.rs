//! Programs that use different sets of nodes notice each other.

use devnodes::{Server, Servers, eventually};
use quorlock::{AcquireError, Builder, LockManager, NodeAnswer, NodeFailure, NodeFinding};

use crate::log_lines;
use crate::support::*;

/// A program with these nodes out of `servers`. Nobody has forgotten anything there.
fn program(servers: &Servers, nodes: &[usize]) -> Builder {
    for server in servers.iter().filter(|it| !it.exists(RECORD)) {
        set(server, RECORD, "0");
    }
    builder(nodes.iter().map(|it| servers[*it].url())).quarantine(true)
}

/// The sets of others that it finds at each of its nodes. It has asked for a lock: who only looks is noted nowhere.
fn found(locks: &LockManager) -> Vec<Vec<NodeFinding>> {
    drop(locks.mutex("used").try_lock());
    locks.check_nodes().into_iter().map(|it| it.findings).collect()
}

fn other(there: u64, here: u64) -> Vec<NodeFinding> {
    vec![NodeFinding::OtherNodes { there, here }]
}

fn none(nodes: usize) -> Vec<Vec<NodeFinding>> {
    vec![vec![]; nodes]
}

/// Looks until the manager has connected so often.
fn look_until_connected(locks: &LockManager, connections: u64) {
    eventually("all nodes are connected", || {
        let _looked = locks.check_nodes();
        connections <= locks.stats().connections
    });
}

/// What the server knows: its id, and the sets in use.
fn stored(server: &Server) -> Vec<String> {
    let record = record(server).unwrap();
    format!("1 {}{}", record.id, record.rest).split(' ').map(str::to_owned).collect()
}

#[test]
fn h15_programs_with_three_and_with_five_of_the_same_nodes_find_each_other() -> TestResult {
    let servers = Servers::start(5)?;
    // Servers that were just started vote soon.
    let soon = |it: Builder| it.ttl(secs(3)).max_ttl(secs(3)).response_timeout(ms(500)).build();
    let three = soon(program(&servers, &[0, 1, 2]))?;
    assert_eq!(found(&three), none(3));
    let five = soon(program(&servers, &[0, 1, 2, 3, 4]))?;

    assert_eq!(found(&five), [other(3, 5), other(3, 5), other(3, 5), vec![], vec![]]);
    assert_eq!(found(&three), [other(5, 3), other(5, 3), other(5, 3)]);

    // It is no outage.
    drop(three.mutex("report").lock()?);
    drop(five.mutex("report").lock()?);
    Ok(())
}

#[test]
fn h15_programs_with_the_same_nodes_in_another_order_find_nothing() -> TestResult {
    let servers = Servers::start(3)?;
    let (one, two) = (program(&servers, &[0, 1, 2]).build()?, program(&servers, &[2, 0, 1]).build()?);
    for _ in 0..3 {
        assert_eq!((found(&one), found(&two)), (none(3), none(3)));
    }
    for server in &servers {
        let stored = stored(server);
        assert_eq!((stored.len(), &*stored[0], &*stored[3]), (5, "1", "3"), "{stored:?}");
    }
    Ok(())
}

#[test]
fn h15_programs_that_have_not_met_all_their_nodes_say_nothing() -> TestResult {
    let servers = Servers::start(4)?;
    let one = program(&servers, &[0, 1, 2]).build()?;
    assert_eq!(found(&one), none(3));
    let two = program(&servers, &[0, 1, 3]).build()?;
    servers[3].kill()?;
    assert_eq!((found(&two), found(&one)), (none(3), none(3)));

    servers[3].restart()?;
    let others = [other(3, 3), other(3, 3), vec![]];
    eventually("it has met all its nodes", || found(&two) == others);
    assert_eq!(found(&one), others);
    Ok(())
}

#[test]
fn h15_the_log_warns_of_programs_with_other_nodes_once() -> TestResult {
    let servers = Servers::start(3)?;
    // Each of them has been used.
    let three = program(&servers, &[0, 1, 2]).build()?;
    assert_eq!(found(&three), none(3));
    let two = program(&servers, &[0, 1]).build()?;
    assert_eq!(found(&two), [other(3, 2), other(3, 2)]);

    let mut child = child("log_lines::child_that_looks_at_its_nodes", &servers.urls());
    assert_eq!(child.hear(), "looked");
    child.go_on();
    let lines = log_lines::warnings(&child);

    assert!(matches!(&lines[..], [it] if it.contains("another set: 2 nodes there, 3 here")), "{lines:?}");
    Ok(())
}

/// Each of them still tells the other nodes of the old set when others have already left the new one there.
#[test]
fn h15_nobody_is_warned_when_a_node_loses_everything() -> TestResult {
    let servers = Servers::start(3)?;
    let one = program(&servers, &[0, 1, 2]).build()?;
    assert_eq!(found(&one), none(3));
    let mut child = child("log_lines::child_that_looks_at_its_nodes", &servers.urls());
    assert_eq!(child.hear(), "looked");

    servers[0].restart_empty()?;
    look_until_connected(&one, 4);
    assert_eq!(found(&one), none(3));
    child.tell("look again");
    assert_eq!(child.hear(), "looked");

    child.go_on();
    let lines = log_lines::warnings(&child);
    assert!(!lines.iter().any(|it| it.contains("another set")), "{lines:?}");
    assert_eq!(found(&one), none(3));
    Ok(())
}

#[test]
fn h15_strict_gives_no_vote_to_nodes_that_others_use_in_another_set() -> TestResult {
    let servers = Servers::start(5)?;
    let three = program(&servers, &[0, 1, 2]).build()?;
    assert_eq!(found(&three), none(3));
    let five = program(&servers, &[0, 1, 2, 3, 4]).strict(true).build()?;
    assert_eq!(found(&five)[..3], [other(3, 5), other(3, 5), other(3, 5)]);

    let err = five.mutex("report").try_lock().unwrap_err();
    assert_no_quorum(&err);
    let refused = |err: &AcquireError| {
        let refused =
            NodeAnswer::Failed(NodeFailure::Disqualified { finding: NodeFinding::OtherNodes { there: 3, here: 5 } });
        err.nodes().iter().filter(|it| it.answer == refused).map(|it| it.node.index()).collect::<Vec<_>>()
    };
    assert!(!refused(&err).is_empty() && refused(&err).iter().all(|it| *it < 3), "{err}");
    nothing_is_left(&servers);

    // An operator deletes what no program uses any more.
    drop(three);
    for server in &servers {
        let edition = "000000000000001".to_owned();
        Record { edition, rest: String::new(), ..record(server).unwrap() }.write(server);
    }
    assert_eq!(found(&five), none(5));
    let err = five.mutex("report").try_lock().err();
    assert!(err.as_ref().is_none_or(|it| refused(it).is_empty()), "{err:?}");
    Ok(())
}

#[test]
fn h15_a_node_that_lost_everything_is_another_one_and_no_other_set_to_those_who_knew_it() -> TestResult {
    let servers = Servers::start(3)?;
    let (one, two) = (program(&servers, &[0, 1, 2]).build()?, program(&servers, &[0, 1, 2]).build()?);
    assert_eq!((found(&one), found(&two)), (none(3), none(3)));
    let before = stored(&servers[1]);

    servers[0].restart_empty()?;
    look_until_connected(&one, 4);
    look_until_connected(&two, 4);

    for _ in 0..3 {
        assert_eq!((found(&one), found(&two)), (none(3), none(3)));
    }
    let after = stored(&servers[1]);
    assert_eq!((after.len(), before.len(), &after[1]), (5, 5, &before[1]));
    assert_ne!(after[2], before[2]);
    // And to managers that come later.
    assert_eq!(found(&program(&servers, &[0, 1, 2]).build()?), none(3));
    Ok(())
}

#[test]
fn h15_a_set_that_nobody_has_used_for_a_day_fades() -> TestResult {
    let servers = Servers::start(1)?;
    let hour = std::time::UNIX_EPOCH.elapsed()?.as_secs() / 3_600;
    let locks = program(&servers, &[0]).build()?;
    for (hours, found_there) in [(22, other(7, 1)), (25, vec![])] {
        let rest = format!(" 00000000000000ff 7 {}", hour - hours);
        Record { id: "4711".to_owned(), rest, ..Record::of_ever(&servers[0]) }.write(&servers[0]);
        assert_eq!(found(&locks), [found_there], "{hours} hours ago");
    }
    assert_eq!((stored(&servers[0]).len(), &*stored(&servers[0])[1]), (5, "4711"));
    Ok(())
}

#[test]
fn what_is_no_set_makes_no_difference() -> TestResult {
    let servers = Servers::start(1)?;
    let locks = program(&servers, &[0]).build()?;
    for nonsense in ["", " x", " 1", " 1 x", " aa 1 1", " zz 1 1", " 00000000000000ff 1111 1", " \0 \0"] {
        Record { rest: nonsense.to_owned(), ..Record::of_ever(&servers[0]) }.write(&servers[0]);
        assert_eq!(found(&locks), none(1), "{nonsense:?}");
        assert_eq!(stored(&servers[0]).len(), 5, "{nonsense:?}");
    }
    Ok(())
}
