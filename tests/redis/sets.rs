//! Programs with other sets of servers are told, or refused; a set may change by one server at a time.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use devnodes::{Proxy, Server, Servers, eventually, eventually_is};
use quorlock::error::{NodeAnswer, NodeCheck, NodeFailure, NodeFinding};
use quorlock::{AcquireError, Builder, LockManager};

use crate::log_lines;
use crate::support::*;

/// A program with these nodes out of `servers`. Nobody has forgotten anything there.
fn program(servers: &Servers, nodes: &[usize]) -> Builder {
    for server in servers.iter().filter(|it| !it.exists(RECORD)) {
        set(server, RECORD, "0");
    }
    builder(nodes.iter().map(|it| servers[*it].url())).quarantine(true)
}

/// What it finds at each of its nodes. It has asked for a lock: who only looks is noted nowhere.
fn found(locks: &LockManager) -> Vec<Vec<NodeFinding>> {
    looked(locks).findings()
}

fn looked(locks: &LockManager) -> Looked {
    drop(locks.mutex("used").try_lock());
    Looked(locks.check_nodes())
}

/// Shown with all that may be in the way of a finding.
struct Looked(Vec<NodeCheck>);

impl Looked {
    fn findings(&self) -> Vec<Vec<NodeFinding>> {
        self.0.iter().map(|it| it.findings.clone()).collect()
    }
}

impl PartialEq<Vec<Vec<NodeFinding>>> for Looked {
    fn eq(&self, other: &Vec<Vec<NodeFinding>>) -> bool {
        self.findings() == *other
    }
}

impl fmt::Debug for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|it| write!(f, "{it}; "))
    }
}

/// Others use the node in a set of another size, or of other servers.
fn other(there: u64, here: u64, is_safe: bool) -> Vec<NodeFinding> {
    vec![NodeFinding::OtherNodes {
        there,
        here,
        label: "".into(),
        is_safe,
    }]
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

/// Of each set in the server's record: how many servers are in it, and their ids.
fn stored(server: &Server) -> Vec<(u64, Vec<String>)> {
    // None yet, or an operator has just begun it.
    let Some(record) = record(server) else {
        return Vec::new();
    };
    let fields: Vec<_> = record.rest.split_whitespace().collect();
    let ids = |it: &str| {
        let mut ids: Vec<_> = it
            .split(',')
            .map(|it| it.split(':').next().unwrap().to_owned())
            .collect();
        ids.sort();
        ids
    };
    let sets = fields
        .chunks(6)
        .map(|it| (it[0].parse().unwrap(), ids(it[5])));
    // One that has this server alone says since when there is the record.
    sets.filter(|(size, ids): &(u64, Vec<String>)| *size == 1 || ids.len() != 1)
        .collect()
}

/// Whether all of these servers have been noted by a program with as many.
fn is_noted(servers: &Servers, nodes: &[usize]) -> bool {
    let has = |it: &usize| {
        stored(&servers[*it])
            .iter()
            .any(|(size, ids)| *size == ids.len() as u64 && ids.len() == nodes.len())
    };
    nodes.iter().all(has)
}

/// A program that has noted its set everywhere, and holds nothing.
fn settled(builder: Builder, servers: &Servers, nodes: &[usize]) -> LockManager {
    let locks = builder.build().unwrap();
    eventually("its set is noted", || {
        drop(locks.mutex("used").try_lock());
        is_noted(servers, nodes)
    });
    locks
}

/// For servers that were just started: they vote soon.
fn soon(it: Builder) -> Builder {
    it.ttl(secs(3))
        .max_ttl(secs(3))
        .response_timeout(ms(500))
        .owner_label(None)
}

#[test]
fn h26_programs_with_three_and_with_five_of_the_same_servers_do_not_go_together() -> TestResult {
    let servers = Servers::start(5)?;
    let three = settled(soon(program(&servers, &[0, 1, 2])), &servers, &[0, 1, 2]);
    let five = soon(program(&servers, &[0, 1, 2, 3, 4])).build()?;
    let refused = [
        other(3, 5, false),
        other(3, 5, false),
        other(3, 5, false),
        vec![],
        vec![],
    ];
    eventually_is("the second is refused", refused.to_vec(), || looked(&five));
    assert_eq!(found(&three), none(3), "who is there is not disturbed");

    // It is no outage.
    drop(three.mutex("report").lock()?);
    drop(five.mutex("report").lock()?);
    Ok(())
}

#[test]
fn h26_a_set_with_one_server_more_is_noted_and_both_lock_under_strict() -> TestResult {
    let servers = Servers::start(4)?;
    let three = settled(
        soon(program(&servers, &[0, 1, 2])).strict(true),
        &servers,
        &[0, 1, 2],
    );
    let four = settled(
        soon(program(&servers, &[0, 1, 2, 3])).strict(true),
        &servers,
        &[0, 1, 2, 3],
    );
    eventually_is("the first has noticed", vec![other(4, 3, true); 3], || {
        looked(&three)
    });
    assert_eq!(found(&four)[..3], vec![other(3, 4, true); 3]);

    for (locks, rival) in [(&three, &four), (&four, &three)] {
        let held = locks.mutex("report").lock()?;
        let err = rival.mutex("report").try_lock().unwrap_err();
        assert!(matches!(err, AcquireError::Held { .. }), "{err}");
        held.release()?;
    }
    // A third is refused, whichever of the two it goes together with.
    let fifth = soon(program(&servers, &[0, 1])).strict(true).build()?;
    eventually_is("the third is refused", vec![other(4, 2, false); 2], || {
        looked(&fifth)
    });
    assert!(fifth.mutex("report").try_lock().is_err());
    Ok(())
}

#[test]
fn h26_programs_with_the_same_servers_in_another_order_find_nothing() -> TestResult {
    let servers = Servers::start(3)?;
    let (one, two) = (
        program(&servers, &[0, 1, 2]).build()?,
        program(&servers, &[2, 0, 1]).build()?,
    );
    for _ in 0..3 {
        assert_eq!((found(&one), found(&two)), (none(3), none(3)));
    }
    for server in &servers {
        assert!(
            matches!(&stored(server)[..], [(3, ids)] if ids.len() == 3),
            "{:?}",
            stored(server)
        );
    }
    Ok(())
}

#[test]
fn h26_a_program_that_has_not_met_all_its_servers_is_judged_by_those_it_has_met() -> TestResult {
    let servers = Servers::start(4)?;
    let one = settled(soon(program(&servers, &[0, 1, 2])), &servers, &[0, 1, 2]);
    let two = soon(program(&servers, &[0, 1, 3])).build()?;
    servers[3].kill()?;
    assert_eq!((found(&two), found(&one)), (none(3), none(3)));

    servers[3].restart()?;
    let all = vec![other(3, 3, false), other(3, 3, false), vec![]];
    eventually_is("it has met all its nodes", all, || looked(&two));
    assert_eq!(found(&one), none(3));
    Ok(())
}

#[test]
fn h26_the_log_warns_of_programs_with_other_servers_once() -> TestResult {
    let servers = Servers::start(4)?;
    // Each of them has been used, in a set of two with the fourth.
    for node in 0..3 {
        drop(settled(
            soon(program(&servers, &[node, 3])).owner_label(Some("old")),
            &servers,
            &[node, 3],
        ));
        let fourth = record(&servers[3]).unwrap();
        Record {
            rest: String::new(),
            edition: "000000000000009".to_owned(),
            ..fourth
        }
        .write(&servers[3]);
    }

    let mut child = child(
        "log_lines::child_that_looks_at_its_nodes",
        &servers.urls()[..3],
    );
    assert_eq!(child.hear(), "looked");
    child.go_on();
    let lines = log_lines::warnings(&child);

    let is_right = |it: &str| {
        it.contains("/old) use it in a set of 2 servers, not in this one of 3; two programs can")
    };
    assert!(matches!(&lines[..], [it] if is_right(it)), "{lines:?}");
    Ok(())
}

/// Each of them still knows the old server when others have already noted the new one.
#[test]
fn h26_nobody_is_warned_when_a_node_loses_everything() -> TestResult {
    let servers = Servers::start(3)?;
    let one = settled(soon(program(&servers, &[0, 1, 2])), &servers, &[0, 1, 2]);
    let mut child = child("log_lines::child_that_looks_at_its_nodes", &servers.urls());
    assert_eq!(child.hear(), "looked");

    servers[0].restart_empty()?;
    look_until_connected(&one, 4);
    assert_eq!(found(&one), none(3));
    child.tell("look again");
    assert_eq!(child.hear(), "looked");

    child.go_on();
    let lines = log_lines::warnings(&child);
    assert!(
        !lines.iter().any(|it| it.contains("in a set of")),
        "{lines:?}"
    );
    assert_eq!(found(&one), none(3));
    Ok(())
}

/// As with a short job each minute: nobody has seen that it was emptied.
#[test]
fn h26_a_server_that_lost_all_makes_no_other_set_for_programs_that_come_later() -> TestResult {
    let servers = Servers::start(3)?;
    let strict = || soon(program(&servers, &[0, 1, 2])).strict(true);
    drop(settled(strict(), &servers, &[0, 1, 2]));
    let before = stored(&servers[1]);

    servers[0].restart_empty()?;

    let locks = strict().build()?;
    eventually("the new one is in the set", || {
        assert_eq!(found(&locks), none(3));
        stored(&servers[1]) != before
    });
    assert!(matches!(&stored(&servers[1])[..], [(3, ids)] if ids.len() == 3));
    drop(locks.mutex("report").lock()?);
    Ok(())
}

/// In the middle of a deployment, with both sets in use.
#[test]
fn h26_a_server_of_two_sets_that_loses_everything_takes_no_vote_from_either() -> TestResult {
    let servers = Servers::start(4)?;
    let strict = |nodes: &[usize]| soon(program(&servers, nodes)).strict(true);
    let four = settled(strict(&[0, 1, 2, 3]), &servers, &[0, 1, 2, 3]);
    let three = settled(strict(&[0, 1, 2]), &servers, &[0, 1, 2]);
    let held = [four.mutex("old").lock()?, three.mutex("new").lock()?];
    servers[0].restart_empty()?;

    eventually("it is the new one in both sets", || {
        drop((
            four.mutex("used").try_lock(),
            three.mutex("used").try_lock(),
        ));
        let new = record(&servers[0]).map(|it| it.id.trim_start_matches('0').to_owned());
        let is_new = |(_, ids): &(u64, Vec<String>)| ids.iter().any(|it| Some(it) == new.as_ref());
        servers
            .iter()
            .skip(1)
            .take(2)
            .all(|it| stored(it).iter().filter(|it| is_new(it)).count() == 2)
    });
    for lock in held {
        lock.release()?;
    }
    // A newcomer of the new set.
    drop(strict(&[0, 1, 2]).build()?.mutex("report").lock()?);
    drop(four.mutex("report").lock()?);
    Ok(())
}

#[test]
fn h26_strict_refuses_who_comes_until_an_operator_says_that_the_others_are_gone() -> TestResult {
    let servers = Servers::start(5)?;
    let three = settled(soon(program(&servers, &[0, 1, 2])), &servers, &[0, 1, 2]);
    let five = soon(program(&servers, &[0, 1, 2, 3, 4]))
        .strict(true)
        .build()?;
    eventually_is("it is refused", vec![other(3, 5, false); 3], || {
        found(&five)[..3].to_vec()
    });

    let err = five.mutex("report").try_lock().unwrap_err();
    assert_no_quorum(&err);
    let finding = || NodeFinding::OtherNodes {
        there: 3,
        here: 5,
        label: "".into(),
        is_safe: false,
    };
    let refused = |err: &AcquireError| {
        let refused = NodeAnswer::Failed(NodeFailure::Disqualified { finding: finding() });
        err.nodes()
            .iter()
            .filter(|it| it.answer == refused)
            .map(|it| it.node.index())
            .collect::<Vec<_>>()
    };
    assert!(
        !refused(&err).is_empty() && refused(&err).iter().all(|it| *it < 3),
        "{err}"
    );
    nothing_is_left(&servers);

    drop(three);
    let rows = five.admin().forget_sets()?;
    assert!(
        rows[..3]
            .iter()
            .all(|it| it.sets.iter().all(|it| it.is_ours)),
        "{rows:?}"
    );
    drop(five.mutex("report").lock()?);
    assert_eq!(found(&five), none(5));
    Ok(())
}

/// A strict program whose servers are older than what their records say of the set, by more than clocks may differ by.
fn on_older_servers(servers: &Servers) -> LockManager {
    let locks = settled(
        soon(program(servers, &[0, 1, 2])).strict(true),
        servers,
        &[0, 1, 2],
    );
    let is_old = |it: &Server| {
        it.info("uptime_in_seconds")
            .is_some_and(|it| 2 <= it.parse::<u64>().unwrap())
    };
    eventually("the servers are old", || servers.iter().all(is_old));
    let changed = (std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() + 10_000).to_string();
    for server in servers {
        let record = record(server).unwrap();
        let mut fields: Vec<_> = record.rest.split(' ').collect();
        (fields[3], fields[4]) = ("1", &changed);
        Record {
            rest: fields.join(" "),
            edition: "000000000000005".to_owned(),
            ..record.clone()
        }
        .write(server);
    }
    locks
}

/// As somebody does who lowers the longest quarantine.
#[test]
fn h26_a_record_that_an_operator_begins_anew_costs_no_lock_under_strict() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_older_servers(&servers);
    let held = locks.mutex("report").lock()?;
    for server in &servers {
        set(server, RECORD, "0");
        eventually("it is in the set again", || {
            drop(locks.mutex("used").try_lock());
            is_noted(&servers, &[0, 1, 2])
        });
        held.check()?;
        assert_eq!(found(&locks), none(3));
    }
    held.release()?;
    Ok(())
}

/// Its record lists the id that the other one had before, and was changed after that one was started.
#[test]
fn h26_a_server_that_was_silent_when_an_operator_began_anothers_record_stays_in_the_set()
-> TestResult {
    let servers = Servers::start(3)?;
    let locks = on_older_servers(&servers);
    let before = stored(&servers[2]);
    servers[2].pause()?;
    set(&servers[0], RECORD, "0");
    eventually("it is in the set again", || {
        drop(locks.mutex("used").try_lock());
        stored(&servers[0]) == stored(&servers[1]) && stored(&servers[0]) != before
    });
    servers[2].resume()?;
    eventually_is("it is in the set as well", none(3), || looked(&locks));
    servers[1].pause()?;
    drop(lock_in_the_end(&locks, "report"));
    Ok(())
}

/// A laptop with some other list, and a program that is not strict.
#[test]
fn h26_strict_incumbents_keep_their_locks_when_a_stranger_comes() -> TestResult {
    let servers = Servers::start(4)?;
    let locks = settled(
        soon(program(&servers, &[0, 1, 2])).strict(true),
        &servers,
        &[0, 1, 2],
    );
    let held = locks.mutex("report").lock()?;
    let extensions = locks.stats().extensions;
    let stranger = soon(program(&servers, &[0, 3])).build()?;
    eventually_is("it has come", other(3, 2, false), || {
        found(&stranger)[0].clone()
    });

    eventually("the lock is extended after that", || {
        extensions + 2 <= locks.stats().extensions
    });
    held.check()?;
    assert_eq!(found(&locks), none(3));
    drop(locks.mutex("another").try_lock()?);
    Ok(())
}

#[test]
fn h26_programs_of_two_sets_that_do_not_go_together_never_both_hold_under_strict() -> TestResult {
    let servers = Servers::start(4)?;
    let old = settled(soon(program(&servers, &[0, 1, 2])), &servers, &[0, 1, 2]);
    // Whatever it has met when it asks.
    for round in 0..40 {
        let new = soon(program(&servers, &[0, 1, 3])).strict(true).build()?;
        let (one, other) = std::thread::scope(|scope| {
            let one = scope.spawn(|| old.mutex("report").try_lock());
            let other = scope.spawn(|| new.mutex("report").try_lock());
            (one.join().unwrap(), other.join().unwrap())
        });
        assert!(one.is_err() || other.is_err(), "round {round}");
    }
    Ok(())
}

/// RACE: the second program is not connected to D, so that nothing is wrong with B, which grants. Then D is back, and grants as well.
#[test]
fn h26_what_was_granted_before_the_other_servers_were_met_is_looked_at_again() -> TestResult {
    let servers = Servers::start(4)?;
    for server in &servers {
        Record {
            id: server.port().to_string(),
            ..Record::of_ever(server)
        }
        .write(server);
    }
    let way = |server: usize| Proxy::start(servers[server].addr());
    let (a, b, d) = (way(0)?, way(1)?, way(3)?);
    let old = builder([servers[0].url(), b.url(), servers[2].url()]).quarantine(true);
    let old = settled(old, &servers, &[0, 1, 2]);
    let new = builder([a.url(), servers[1].url(), d.url()])
        .quarantine(true)
        .strict(true)
        .build()?;
    eventually("it has met all of them", || {
        found(&new).iter().filter(|it| it.is_empty()).count() == 1
    });
    for way in [&a, &b] {
        way.refuse(true);
        way.cut();
    }
    let held = old.mutex("report").lock()?;

    d.hold_replies();
    d.cut();
    let connections = new.stats().connections;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let tries = || {
            while !is_over.load(Ordering::SeqCst) {
                assert_no_quorum(&new.mutex("report").try_lock().unwrap_err());
            }
        };
        let second = scope.spawn(tries);
        eventually("B has granted", || servers[1].exists("report"));
        d.release_replies();
        eventually("D is back", || connections < new.stats().connections);
        let rounds = new.stats().rounds_without_quorum;
        eventually("the round is over, and one more", || {
            rounds + 2 <= new.stats().rounds_without_quorum
        });
        is_over.store(true, Ordering::SeqCst);
        second.join().unwrap();
    });
    held.check()?;
    Ok(())
}

/// C and a spare behind one name. The spare has been in use for longer than a quarantine, in a set of its own.
#[test]
fn h26_a_spare_in_the_place_of_a_dead_server_has_no_vote_before_a_quarantine() -> TestResult {
    let servers = Servers::start(4)?;
    let name = Proxy::start(servers[2].addr())?;
    let strict = |urls: [String; 3]| soon(builder(urls)).quarantine(true).strict(true);
    let urls = || [servers[0].url(), servers[1].url(), name.url()];
    for server in &servers {
        Record {
            id: server.port().to_string(),
            ..Record::of_ever(server)
        }
        .write(server);
    }
    drop(settled(soon(program(&servers, &[3])), &servers, &[3]));
    // Nobody has used it for long.
    let spare = record(&servers[3]).unwrap();
    let rest: Vec<_> = spare
        .rest
        .split(' ')
        .enumerate()
        .map(|(at, it)| if at == 2 { "1" } else { it })
        .collect();
    Record {
        rest: rest.join(" "),
        edition: "000000000000004".to_owned(),
        ..spare
    }
    .write(&servers[3]);

    let old = strict(urls()).build()?;
    eventually("the set is noted", || {
        drop(old.mutex("used").try_lock());
        is_noted(&servers, &[0, 1, 2])
    });
    servers[1].pause()?;
    let held = old.mutex("report").lock()?;
    servers[2].kill()?;
    name.lead_to(servers[3].addr());
    servers[1].resume()?;

    // A holds the lock for the old program. Without the quarantine B and the spare were a majority for the new one.
    servers[0].pause()?;
    let new = strict(urls()).build()?;
    let err = new.mutex("report").try_lock().unwrap_err();
    let row = &err.nodes()[2];
    assert!(
        matches!(
            row.answer,
            NodeAnswer::Failed(NodeFailure::Quarantined { .. })
        ),
        "{err}"
    );
    servers[0].resume()?;
    drop(held);
    drop(new.mutex("report").lock()?);
    Ok(())
}

#[test]
fn h26_a_set_that_nobody_has_used_for_a_day_is_in_nobodys_way() -> TestResult {
    let servers = Servers::start(1)?;
    let hour = std::time::UNIX_EPOCH.elapsed()?.as_secs() / 3_600;
    let locks = program(&servers, &[0]).build()?;
    for (hours, found_there) in [(22, other(7, 1, false)), (25, vec![])] {
        let rest = format!(
            " 7 {} 1 1 - 4711:0,12:0,13:0,14:0,15:0,16:0,17:0",
            hour - hours
        );
        Record {
            id: "4711".to_owned(),
            rest,
            ..Record::of_ever(&servers[0])
        }
        .write(&servers[0]);
        assert_eq!(found(&locks), [found_there], "{hours} hours ago");
    }
    assert_eq!(stored(&servers[0]), [(1, vec!["4711".to_owned()])]);
    Ok(())
}

#[test]
fn what_is_no_set_makes_no_difference() -> TestResult {
    let servers = Servers::start(1)?;
    let locks = program(&servers, &[0]).build()?;
    let long = format!(" 3 1 1 1 {} 1:0", "x".repeat(70));
    for nonsense in [
        "",
        " x",
        " 1",
        " 1 x",
        " 1 1 1 1 - 1",
        " 99 1 1 1 - 1:0",
        " 1 1 1 1 - 1:0,2:0",
        &long,
        " \0 \0",
        " \u{fc}",
    ] {
        Record {
            rest: nonsense.to_owned(),
            ..Record::of_ever(&servers[0])
        }
        .write(&servers[0]);
        assert_eq!(found(&locks), none(1), "{nonsense:?}");
        assert_eq!(stored(&servers[0]).len(), 1, "{nonsense:?}");
    }
    Ok(())
}
