//! Servers keep a record: which process has kept all data, and since when; and everybody waits for the longest ttl in use.

use devnodes::{Server, Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure, QuarantineReason};
use quorlock::{AcquireError, Builder, LockManager};

use crate::nodes::lying_servers::speaking_for;
use crate::support::*;
use crate::topology::replicated::vouched;

/// Long enough that nothing of it passes by itself while a test looks.
const QUARANTINE: std::time::Duration = secs(600);
const HALF_AN_HOUR: std::time::Duration = secs(30 * 60);

/// Servers whose clocks are ahead, which makes for as much uptime.
pub(crate) fn aged(n: usize, options: fn(devnodes::Builder) -> devnodes::Builder) -> Servers {
    let servers = Servers::start_with(n, |it| options(it.stepped_clock())).unwrap();
    servers
        .iter()
        .for_each(|it| it.step_clock_forward(HALF_AN_HOUR).unwrap());
    servers
}

pub(crate) fn strict(urls: impl IntoIterator<Item = String>) -> Builder {
    builder(urls).quarantine(true).max_ttl(QUARANTINE)
}

pub(crate) fn run_id(server: &Server) -> String {
    server.info("run_id").unwrap()
}

/// As if the server's process had kept everything for ever, and had this `max_ttl`: milliseconds.
pub(crate) fn remember(server: &Server, max_ttl: u64) {
    Record::write_changed(server, |it| it.max_ttl = max_ttl);
}

/// For how long node 0 has no vote; zero if it has one.
pub(crate) fn quarantine(locks: &LockManager) -> std::time::Duration {
    match locks.mutex("report").try_lock() {
        Ok(guard) => {
            drop(guard);
            secs(0)
        }
        Err(err) => quarantined(&err),
    }
}

/// The same for a client that comes now.
pub(crate) fn quarantine_of(server: &Server) -> std::time::Duration {
    quarantine(&strict([server.url()]).build().unwrap())
}

fn quarantined(err: &AcquireError) -> std::time::Duration {
    quarantine_at(err, 0)
}

/// For how long the node has no vote.
#[track_caller]
fn quarantine_at(err: &AcquireError, node: usize) -> std::time::Duration {
    let NodeFailure::Quarantined { left, .. } = failure(err, node) else {
        panic!("{err}")
    };
    *left
}

#[test]
fn h16_a_server_that_came_back_with_its_data_is_quarantined_for_new_clients() -> TestResult {
    needs!(DataOnDisk);
    needs!(SteppedClocks);
    let server = Server::builder()
        .appendonly()
        .arg("--appendfsync", "always")
        .stepped_clock()
        .start()?;
    remember(&server, 0);
    server.restart()?;
    assert_eq!(record(&server).unwrap().since, 1, "it has its data");
    server.step_clock_forward(HALF_AN_HOUR)?;

    let left = quarantine_of(&server);

    assert!(secs(500) < left, "{left:?}");
    Ok(())
}

#[test]
fn h16_a_snapshot_that_was_restored_elsewhere_or_a_swapped_disk_proves_nothing() -> TestResult {
    needs!(DataOnDisk);
    needs!(SteppedClocks);
    let servers = aged(2, |it| it);
    remember(&servers[0], 0);
    let snapshot = servers[0].command(&["DUMP", RECORD])?;
    let snapshot = snapshot.as_bytes().unwrap();
    servers[1].command(&[&b"RESTORE"[..], RECORD.as_bytes(), b"0", snapshot])?;

    assert_eq!(quarantine_of(&servers[0]), secs(0), "its own snapshot");
    assert!(secs(500) < quarantine_of(&servers[1]));
    Ok(())
}

#[test]
fn b6_an_operator_vouches_for_one_process_of_a_server() -> TestResult {
    needs!(SteppedClocks);
    let servers = aged(2, |it| it);
    set(&servers[0], RECORD, "0");

    assert_eq!(quarantine_of(&servers[0]), secs(0));

    let kept = record(&servers[0]).unwrap();
    let began = time_at(&servers[0]) - 1_000_000 * HALF_AN_HOUR.as_secs();
    let off = kept.since.abs_diff(began);
    assert!(off < 60_000_000, "since its start: {kept:?}");
    assert_eq!((&kept.run_id, &*kept.origin), (&run_id(&servers[0]), "new"));
    // Nor does that vouch for another one.
    kept.write(&servers[1]);
    assert!(secs(500) < quarantine_of(&servers[1]));
    Ok(())
}

#[test]
fn b6_an_invalid_record_proves_nothing() -> TestResult {
    needs!(SteppedClocks);
    let server = &aged(1, |it| it)[0];
    let fine = Record::of_ever(server).text();
    let short = fine.replace(" 0000000000000001 1 ", " 1 1 ");
    let odd = fine.replace(" old ", "  old ");
    let mut future = Record::of_ever(server);
    future.since = 9_007_199_254_740_991;
    let nonsense = [
        "1",
        "1763789369000000",
        "x",
        "-5",
        "",
        "1 1",
        &short,
        &odd,
        &future.text(),
    ];
    for nonsense in nonsense {
        set(server, RECORD, nonsense);
        assert!(secs(500) < quarantine_of(server), "{nonsense}");
        let kept = record(server).unwrap();
        assert_eq!(kept.format, "1", "{nonsense}");
        assert_eq!(kept.run_id, run_id(server), "{nonsense}");
    }
    del(server, RECORD);
    server.command(&["LPUSH", RECORD, "a"])?;
    assert!(secs(500) < quarantine_of(server));
    Ok(())
}

#[test]
fn unread_fields_of_a_later_record_format_are_kept() -> TestResult {
    needs!(SteppedClocks);
    let server = &aged(1, |it| it)[0];
    let mut later = Record {
        format: "2".to_owned(),
        servers: "1".to_owned(),
        rest: " a %sb".to_owned(),
        ..Record::of_ever(server)
    };
    later.write(server);

    assert_eq!(quarantine_of(server), secs(0));

    let kept = record(server).unwrap();
    assert_ne!(kept.record_version, later.record_version);
    later.record_version.clone_from(&kept.record_version);
    later.max_ttl = 600_000;
    later.rest = " 000000000000001 a %sb".to_owned();
    assert_eq!(kept, later);
    Ok(())
}

#[test]
fn h15_a_max_ttl_that_is_raised_lengthens_a_quarantine_that_has_begun() -> TestResult {
    let servers = Servers::start(3)?;
    let short = builder(servers.urls())
        .quarantine(true)
        .max_ttl(secs(60))
        .build()?;
    // A round is lost with the second of them: the third may answer later.
    let by_all = || {
        error_in_the_end(&short, "report", |it| {
            let mut answers = it.nodes().iter().map(|it| &it.answer);
            answers.all(|it| *it != NodeAnswer::Pending)
        })
    };
    let first = by_all();
    assert!(quarantined(&first) < secs(62), "{first}");

    let raised = strict(servers.urls())
        .build()?
        .admin()
        .set_max_ttl(QUARANTINE);
    for row in raised {
        assert_eq!(row.max_ttl, Some(QUARANTINE), "{row:?}");
    }

    let now = by_all();
    for node in 0..3 {
        assert!(secs(300) < quarantine_at(&now, node), "{now}");
    }
    Ok(())
}

/// Deleted on one server after another it comes back, because programs have seen it on the others.
#[test]
fn h27_the_max_ttl_of_servers_does_not_fall_while_a_program_runs() -> TestResult {
    needs!(SteppedClocks);
    let servers = aged(2, |it| it);
    remember(&servers[0], 600_000);
    remember(&servers[1], 600_000);
    let max_ttls = || [0, 1].map(|it| record(&servers[it]).unwrap().max_ttl);
    let program = || builder(servers.urls()).quarantine(true).build().unwrap();
    let runs = program();
    for locks in [&runs, &program()] {
        drop(locks.mutex("report").try_lock()?);
        assert_eq!(max_ttls(), [600_000; 2]);
    }
    set_all(&servers, RECORD, "0");
    // Not the records that it had, so a quarantine begins.
    assert_no_quorum(&runs.mutex("report").try_lock().unwrap_err());
    eventually("it has raised both", || max_ttls() == [600_000; 2]);

    drop(runs);
    set_all(&servers, RECORD, "0");
    drop(program().mutex("report").try_lock()?);
    assert_eq!(max_ttls(), [20_000; 2]);
    Ok(())
}

#[test]
fn g5_every_connection_reads_the_record_before_it_asks_for_a_vote() -> TestResult {
    for resp3 in [true, false] {
        let server = Server::start()?;
        let fake = speaking_for(&server, move |_, command| {
            (!resp3 && command[0] == b"HELLO").then(|| b"-ERR unknown command 'HELLO'\r\n".to_vec())
        });
        set(&server, RECORD, "0");
        let short = builder([fake.url()])
            .ttl(secs(2))
            .max_ttl(secs(2))
            .response_timeout(ms(500));
        let locks = short.quarantine(true).build()?;
        eventually("it has a vote", || locks.mutex("report").try_lock().is_ok());

        let seen = fake.commands_seen();
        // Without HELLO everything is asked twice.
        let role = seen.iter().rposition(|it| it[0] == b"ROLE").unwrap();
        let ran: Vec<_> = seen[role..]
            .iter()
            .filter(|it| it[0].starts_with(b"EVAL"))
            .collect();
        let only_the_record = [b"1".to_vec(), RECORD.into()];
        assert_eq!(ran[0][2..4], only_the_record);
        let for_a_vote = |it: &&Vec<Vec<u8>>| it.get(3).is_some_and(|it| it == b"report");
        assert!(2 <= seen[role..].iter().filter(for_a_vote).count());
        assert_eq!(seen[..role].iter().filter(for_a_vote).count(), 0);
    }
    Ok(())
}

#[test]
fn a_user_without_info_rights_keeps_the_record_of_others() -> TestResult {
    needs!(AccessLists);
    needs!(SteppedClocks);
    let server = &aged(1, |it| it)[0];
    remember(server, 0);
    let url = add_user(server, "locks", "~* &* +@all -info");
    let mute = || strict([url.clone()]).build().unwrap();

    // At the beginning of every connection.
    assert!(secs(500) < quarantine(&mute()));
    assert_eq!(quarantine_of(server), secs(0));

    // The record that it sets names no process, and the first client that can tell replaces it.
    del(server, RECORD);
    assert!(secs(500) < quarantine(&mute()));
    assert_eq!(record(server).unwrap().run_id, "?");
    assert!(secs(500) < quarantine_of(server));
    assert_eq!(record(server).unwrap().run_id, run_id(server));
    Ok(())
}

/// Why nodes have no vote.
fn reasons(rows: &[quorlock::error::NodeCheck]) -> Vec<Option<QuarantineReason>> {
    let why = |it: &quorlock::error::NodeCheck| match it.failure {
        Some(NodeFailure::Quarantined { why, .. }) => Some(why),
        None => None,
        _ => panic!("{it}"),
    };
    rows.iter().map(why).collect()
}

/// Waits until that is noticed.
fn wait_for_reasons(locks: &LockManager, expected: [Option<QuarantineReason>; 3]) {
    eventually("that is noticed", || {
        drop(locks.mutex("new").try_lock());
        let rows = locks.check_nodes();
        let is_away = |it: &quorlock::error::NodeCheck| {
            !matches!(it.failure, None | Some(NodeFailure::Quarantined { .. }))
        };
        !rows.iter().any(is_away) && reasons(&rows) == expected
    });
}

#[test]
fn new_servers_vote_for_all_clients_once_vouched_for() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = strict(servers.urls()).build()?;
    let new = [Some(QuarantineReason::New); 3];
    assert_eq!(reasons(&locks.check_nodes()), new);
    let err = locks.mutex("report").try_lock().unwrap_err();
    assert_contains(&err, "vouch for it");

    let rows = locks.admin().vouch();

    assert_eq!(reasons(&rows), [None; 3], "{rows:?}");
    drop(locks.mutex("report").try_lock()?);
    drop(strict(servers.urls()).build()?.mutex("other").try_lock()?);
    for server in &servers {
        let kept = record(server).unwrap();
        assert_eq!((kept.since, &*kept.origin), (0, "vouched"));
        assert_eq!(kept.run_id, run_id(server));
    }
    // It is for these processes, and what becomes of them later is another matter.
    servers[0].restart_empty()?;
    servers[1].command(&["FLUSHALL"])?;
    let restarted = Some(QuarantineReason::Restarted);
    let emptied = Some(QuarantineReason::Emptied);
    wait_for_reasons(&locks, [restarted, emptied, None]);
    Ok(())
}

#[test]
fn h15_a_longer_max_ttl_gets_no_vote_until_an_operator_raises_it_on_all_servers() -> TestResult {
    let servers = Servers::start(3)?;
    let short = vouched(strict(servers.urls()));
    let max_ttls = || [0, 1, 2].map(|it: usize| record(&servers[it]).unwrap().max_ttl);
    assert_eq!(max_ttls(), [600_000; 3]);
    let hour = secs(3_600);
    let long = || strict(servers.urls()).max_ttl(hour).build().unwrap();

    let err = long().mutex("report").lock().unwrap_err();
    let refused = NodeFailure::MaxTtl {
        there: QUARANTINE,
        here: hour,
    };
    assert_eq!(failure(&err, 0), &refused, "{err}");
    assert_contains(&err, "quorlock doctor --max-ttl 3600s");
    assert_eq!(long().check_nodes()[2].failure, Some(refused));

    // One that is down could keep what it has.
    servers[2].kill()?;
    let rows = short.admin().set_max_ttl(hour);
    assert!(rows[2].failure.is_some(), "{rows:?}");
    assert_eq!(rows[0].max_ttl, Some(QUARANTINE));
    servers[2].restart()?;
    let raise = || long().admin().set_max_ttl(hour);
    eventually("all can be reached", || {
        raise().iter().all(|row| row.max_ttl == Some(hour))
    });

    assert_eq!(max_ttls(), [3_600_000; 3]);
    assert_eq!(record(&servers[0]).unwrap().origin, "vouched");
    drop(lock_in_the_end(&long(), "report"));
    // It is not lowered, and a program with less is served.
    assert_eq!(short.admin().set_max_ttl(secs(10))[0].max_ttl, Some(hour));
    drop(lock_in_the_end(&short, "report"));
    // One that loses everything has no vote for as long.
    servers[0].command(&["FLUSHALL"])?;
    eventually("it has no vote", || {
        drop(short.mutex("report").try_lock());
        matches!(short.check_nodes()[0].failure, Some(NodeFailure::Quarantined { left, .. }) if secs(3_000) < left)
    });
    Ok(())
}

#[test]
fn b6_servers_with_proven_earlier_use_cannot_be_vouched_for() -> TestResult {
    needs!(SteppedClocks);
    let servers = aged(3, |it| it);
    // One has the data of another server; one is restarted while we look on; one is emptied.
    Record::write_changed(&servers[0], |it| it.run_id = "abcdef".to_owned());
    remember(&servers[1], 0);
    remember(&servers[2], 0);
    let locks = connected_to_all(strict(servers.urls()));
    servers[1].restart_empty()?;
    servers[2].command(&["FLUSHALL"])?;
    let restarted = Some(QuarantineReason::Restarted);
    let known = [restarted, restarted, Some(QuarantineReason::Emptied)];
    wait_for_reasons(&locks, known);

    let rows = locks.admin().vouch();

    assert_eq!(reasons(&rows), known, "{rows:?}");
    for (row, server) in rows.iter().zip(&servers) {
        assert!(!row.to_string().contains("vouch"), "{row}");
        assert_ne!(record(server).unwrap().origin, "vouched");
    }
    // A new manager knows less, and may do it where nothing is left that knows more.
    let rows = strict(servers.urls()).build()?.admin().vouch();
    assert_eq!(reasons(&rows), [restarted, None, None]);
    Ok(())
}

#[test]
fn b6_vouching_is_refused_by_a_server_that_got_the_data_of_another_one() -> TestResult {
    let (new, old) = (Server::start()?, Server::start()?);
    let fake = speaking_for(&new, |_, _| None);
    drop(strict([fake.url()]).build()?.admin().vouch());
    let seen = fake.commands_seen();
    for with_source in seen.iter().filter(|words| words[0] == b"EVAL") {
        let load = [b"SCRIPT", &b"LOAD"[..], &with_source[1]];
        old.command(&load)?;
    }
    let vouches = |it: &&Vec<Vec<u8>>| it.get(7).is_some_and(|it| it == b"vouch");
    let words = seen.iter().find(vouches).unwrap();

    // As if it had got that data in between.
    for (run_id, answer) in [("abcdef".to_owned(), 3), (run_id(&old), 1)] {
        Record::write_changed(&old, |it| it.run_id = run_id);
        let reply = old.command(words)?;
        let status = reply.as_array().and_then(|it| it[0].as_int());
        assert_eq!(status, Some(answer), "{reply:?}");
        assert_eq!(record(&old).unwrap().origin, "old");
    }
    Ok(())
}

fn connected_to_all(builder: Builder) -> LockManager {
    let locks = builder.build().unwrap();
    eventually("all are connected", || {
        drop(locks.mutex("warm-up").try_lock());
        locks.stats().connections == 3
    });
    locks
}

#[test]
fn a_failed_write_of_a_vouch_is_reported_and_keeps_the_quarantine() -> TestResult {
    needs!(Settings);
    let server = Server::start()?;
    server.command(&["CONFIG", "SET", "maxmemory", "1"])?;
    let locks = strict([server.url()]).build()?;

    let rows = locks.admin().vouch();

    let failure = rows[0].failure.as_ref().unwrap();
    assert!(says(failure, "out of memory"), "{failure}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"])?;
    assert!(secs(500) < quarantine(&locks));
    assert_eq!(reasons(&locks.admin().vouch()), [None]);
    assert_eq!(quarantine(&locks), secs(0));
    Ok(())
}

#[test]
fn a_server_without_readable_run_id_cannot_be_vouched_for() -> TestResult {
    needs!(AccessLists);
    let server = Server::start()?;
    let url = add_user(&server, "locks", "~* &* +@all -info");
    let mute = strict([url]).build()?;

    let rows = mute.admin().vouch();

    assert_eq!(reasons(&rows), [Some(QuarantineReason::Unverifiable)]);
    assert!(rows[0].to_string().contains("INFO"), "{rows:?}");
    Ok(())
}
