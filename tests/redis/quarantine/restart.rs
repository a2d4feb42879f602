//! Nodes that may have forgotten locks have no vote until those have expired, and held locks are healed there.

use std::thread;
use std::time::Instant;

use devnodes::{Servers, eventually};
use quorlock::error::{NodeAnswer, NodeFailure, NodeReport};
use quorlock::{AcquireError, Builder, ExtendError, Hold, LockManager};

use crate::kinds::each_kind::{KINDS, nothing_is_left_of};
use crate::quarantine::record::remember;
use crate::support::*;
use crate::topology::replicated::vouched;

/// Long enough that nothing of it passes by itself while a test looks.
const QUARANTINE: std::time::Duration = secs(600);

fn strict(servers: &Servers) -> Builder {
    builder(servers.urls()).quarantine(true)
}

/// Vouches for a server that was just started: as if it had been used for long.
fn vouch(servers: &Servers) {
    set_all(servers, RECORD, "0");
}

/// Takes the lock until all nodes have a vote: the last one may have heard of us later than the others.
fn wait_for_all_votes(locks: &LockManager, servers: &Servers) {
    // A counter is left where a grant counts.
    eventually("all of them vote", || {
        drop(locks.mutex("report").lock().unwrap());
        servers.iter().all(|it| it.exists(fence("report"))) && locks.stats().quarantined.is_empty()
    });
}

fn holders(servers: &Servers) -> Vec<bool> {
    servers.iter().map(|it| it.exists("report")).collect()
}

/// Nodes that are quarantined, by the rows of an error.
fn quarantined(err: &AcquireError) -> Vec<usize> {
    let is_quarantined = |it: &&NodeReport| {
        matches!(
            it.answer,
            NodeAnswer::Failed(NodeFailure::Quarantined { .. })
        )
    };
    let rows = err.nodes().iter().filter(is_quarantined);
    rows.map(|it| it.node.index()).collect()
}

#[test]
fn b6_new_servers_have_no_vote_and_errors_show_the_rest() -> TestResult {
    let servers = Servers::start(3)?;
    vouch(&servers);
    let locks = strict(&servers).max_ttl(QUARANTINE).build()?;

    let err = locks.mutex("report").try_lock().unwrap_err();

    assert!(matches!(err, AcquireError::NoQuorum { .. }), "{err}");
    assert!(2 <= quarantined(&err).len(), "{err}");
    for row in err.nodes() {
        if let NodeAnswer::Failed(NodeFailure::Quarantined { left, .. }) = row.answer {
            assert!(secs(1) < left && left < secs(620), "{left:?}");
        }
    }
    let quarantined = locks.stats().quarantined;
    let is_long = |(_, left): &(_, _)| secs(1) < *left;
    assert!(!quarantined.is_empty() && quarantined.iter().all(is_long));
    for row in locks.check_nodes() {
        assert_matches!(row.failure, Some(NodeFailure::Quarantined { .. }));
    }
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn lock_waits_through_the_quarantine_despite_a_short_outage_timeout() -> TestResult {
    let servers = Servers::start(3)?;
    let began = Instant::now();
    let locks = with_quarantine(servers.urls(), secs(2))
        .outage_timeout(ms(0))
        .build()?;

    let guard = locks.mutex("report").lock()?;

    // The records were made by our first attempt, at the earliest.
    assert!(secs(2) <= began.elapsed());
    assert!(guard.is_valid());
    eventually("the third one votes as well", || {
        locks.stats().quarantined.is_empty()
    });
    Ok(())
}

/// A manager holds a lock on the first two of three nodes, and one of those restarts empty. `other` wants the lock. True if
/// it gets it while it is held.
fn breaks_a_lock(
    other: Builder,
    servers: &Servers,
    holder: Builder,
) -> Result<bool, Box<dyn std::error::Error>> {
    let (other, holder) = (other.build()?, holder.renew(false).build()?);
    let _vouched = other.admin().vouch();
    drop(other.mutex("report").lock()?);
    connect(&other, 3);
    // The last one may grant it to the other, and hear of its release, later than the rest.
    nothing_is_left(servers);
    let guard = holder.mutex("report").lock()?;
    assert_eq!(holders(servers), [true, true, false]);

    servers[1].kill()?;
    servers[1].restart()?;

    let _theirs = other.mutex("report").lock()?;
    Ok(guard.is_valid())
}

#[test]
fn b6_a_node_that_restarts_empty_does_not_help_to_break_a_lock() -> TestResult {
    let servers = Servers::start(3)?;
    let first_two = &servers.urls()[..2];
    let ttl = |it: Builder| it.ttl(secs(6)).max_ttl(secs(6)).response_timeout(secs(1));
    assert!(!breaks_a_lock(
        ttl(strict(&servers)),
        &servers,
        ttl(builder(first_two).quarantine(true))
    )?);
    Ok(())
}

#[test]
fn without_quarantine_a_node_that_restarts_empty_helps_to_break_a_lock() -> TestResult {
    // The hole that the quarantine closes: if this fails, the test above proves nothing.
    let servers = Servers::start(3)?;
    assert!(breaks_a_lock(
        builder(servers.urls()),
        &servers,
        builder(&servers.urls()[..2]).ttl(LONG)
    )?);
    Ok(())
}

#[test]
fn b6_i3_j2_k4_emptied_servers_have_no_vote_on_any_kind_until_records_are_old() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = with_quarantine(servers.urls(), secs(3)).build()?;
    wait_for_all_votes(&locks, &servers);
    for kind in KINDS {
        // All servers have been keeping everything for long enough.
        drop(kind.try_take(&locks)?);
    }
    nothing_is_left_of(&KINDS, &servers);

    for server in servers.iter().take(2) {
        server.command(&["FLUSHALL"])?;
        // Of one name the counter is there, as if a lock had been taken since.
        set(server, &fence("a"), "7");
    }

    for kind in KINDS {
        let err = kind.try_take(&locks).unwrap_err();
        assert_eq!(quarantined(&err), [0, 1], "{kind:?}: {err}");
    }
    let err = locks.mutex("never used").try_lock().unwrap_err();
    assert_eq!(quarantined(&err), [0, 1], "{err}");
    nothing_is_left_of(&KINDS, &servers);
    drop(locks.mutex("report").lock()?);
    drop(locks.rw_lock("report").read()?);
    Ok(())
}

/// Whatever becomes of a server's record, the next command shows it, for every name.
#[test]
fn h17_a_lost_or_edited_record_quarantines_every_name() -> TestResult {
    let servers = Servers::start(1)?;
    let server = &servers[0];
    let locks = with_quarantine(servers.urls(), secs(2)).build()?;
    drop(locks.mutex("known").lock()?);
    let is_silent = |what: &str| {
        for name in ["known", what] {
            let err = locks.mutex(name).try_lock().unwrap_err();
            assert_eq!(quarantined(&err), [0], "{what}: {err}");
            let NodeFailure::Quarantined { left, .. } = failure(&err, 0) else {
                panic!("{err}")
            };
            assert!(*left <= secs(3), "{what}: {left:?}");
        }
        assert!(record(server).is_some(), "{what}");
    };
    for nonsense in ["x", "-5", "99999999999999999999", "9007199254740991"] {
        set(server, RECORD, nonsense);
        is_silent(nonsense);
    }
    type Change = fn(&mut Record);
    let changes: [(&str, Change); 2] = [
        ("another run", |it| it.run_id = "abc".to_owned()),
        ("the future", |it| it.since = 9_007_199_254_740_991),
    ];
    let fine = record(server).unwrap();
    for (what, change) in changes {
        let mut changed = fine.clone();
        changed.record_version = "000000000000001".to_owned();
        change(&mut changed);
        changed.write(server);
        is_silent(what);
    }
    del(server, RECORD);
    is_silent("deleted");
    del(server, RECORD);
    server.command(&["LPUSH", RECORD, "a"])?;
    is_silent("a list");
    drop(locks.mutex("known").lock()?);
    Ok(())
}

#[test]
fn a_ttl_above_the_one_that_the_quarantine_covers_is_refused() -> TestResult {
    let servers = Servers::start(1)?;
    let locks = strict(&servers).ttl(secs(20)).max_ttl(secs(30)).build()?;

    let err = locks.mutex("report").ttl(secs(31)).try_lock().unwrap_err();
    assert!(matches!(err, AcquireError::BadTtl(_)), "{err}");
    assert_contains(&err, "max_ttl");
    assert!(!matches!(
        locks.mutex("report").ttl(secs(30)).try_lock(),
        Err(AcquireError::BadTtl(_))
    ));
    let less = strict(&servers).ttl(secs(20)).max_ttl(secs(19));
    assert!(less.build().is_err());
    // By default it is the manager's ttl; without quarantine nobody depends on it.
    let by_default = strict(&servers).ttl(secs(20)).build()?;
    assert!(matches!(
        by_default.mutex("report").ttl(secs(21)).try_lock(),
        Err(AcquireError::BadTtl(_))
    ));
    let another = Servers::start(1)?;
    let without = manager(&another);
    drop(without.mutex("report").ttl(secs(21)).try_lock()?);
    Ok(())
}

/// Forty locks of each kind, while every server is restarted with nothing.
#[test]
fn d8_200_locks_of_all_kinds_that_others_wait_for_outlive_every_restart() -> TestResult {
    let servers = Servers::start(3)?;
    let strict = || with_quarantine(servers.urls(), secs(4));
    let locks = vouched(strict());
    let both = |it: usize| [format!("several-{it}-a"), format!("several-{it}-b")];
    let take = |it: usize| -> Result<[Hold; 5], AcquireError> {
        Ok([
            locks.mutex(format!("mutex-{it}")).lock()?.into(),
            locks.rw_lock(format!("read-{it}")).read()?.into(),
            locks.rw_lock(format!("write-{it}")).write()?.into(),
            locks.multi_lock(both(it)).lock()?.into(),
            locks.semaphore(format!("permit-{it}"), 1).acquire()?.into(),
        ])
    };
    let holds: Vec<_> = (0..40).map(take).collect::<Result<_, _>>()?;

    let newcomer = strict().build()?;
    let wait_for = |it: usize| -> [Box<dyn FnOnce() + Send>; 5] {
        let mutex = newcomer.mutex(format!("mutex-{it}"));
        let [read, write] = ["read", "write"].map(|kind| newcomer.rw_lock(format!("{kind}-{it}")));
        let several = newcomer.multi_lock(both(it));
        let permit = newcomer.semaphore(format!("permit-{it}"), 1);
        [
            Box::new(move || assert!(mutex.lock().is_err())),
            Box::new(move || assert!(read.write().is_err())),
            Box::new(move || assert!(write.write().is_err())),
            Box::new(move || assert!(several.lock().is_err())),
            Box::new(move || assert!(permit.acquire().is_err())),
        ]
    };
    let waiting: Vec<_> = (0..40).flat_map(wait_for).map(thread::spawn).collect();
    for server in &servers {
        server.restart_empty()?;
        let mut was_quarantined = false;
        eventually("it votes again, and has all locks", || {
            let stats = locks.stats();
            was_quarantined |= !stats.quarantined.is_empty();
            was_quarantined && stats.quarantined.is_empty() && stats.partly_held == 0
        });
        assert_eq!(lock_keys(server).len(), 200);
    }

    assert_eq!(locks.stats().locks_lost, 0, "{:?}", locks.stats());
    assert!(holds.iter().flatten().all(|it| it.is_valid()));
    newcomer.shutdown();
    waiting.into_iter().for_each(join);
    Ok(())
}

/// One server's record is lost, changed or forbidden while a lock is taken, held, extended and given back.
#[test]
fn h17_a_hold_survives_any_change_of_one_servers_record() -> TestResult {
    needs!(AccessLists);
    let spoil: [fn(&devnodes::Server); 4] = [
        |server| del(server, RECORD),
        |server| {
            // In one step: a client may make a record in between.
            let list = "redis.call('DEL', KEYS[1]) return redis.call('LPUSH', KEYS[1], 'a')";
            server.command(&["EVAL", list, "1", RECORD]).unwrap();
        },
        |server| set(server, RECORD, "nonsense"),
        |server| {
            // All keys but the record.
            let keys = [
                "~report",
                "~quorlock:fence*",
                "~quorlock:waiting*",
                "~quorlock:mark*",
            ];
            server
                .command(&[&["ACL", "SETUSER", "default", "resetkeys"][..], &keys].concat())
                .unwrap();
        },
    ];
    for (i, spoil) in spoil.into_iter().enumerate() {
        let servers = Servers::start(3)?;
        let locks = vouched(strict(&servers).max_ttl(QUARANTINE).ttl(LONG));
        connect(&locks, 3);
        let other = strict(&servers).max_ttl(QUARANTINE).build()?;

        let guard = locks.mutex("report").lock()?;
        // Where the record changed meanwhile, the next extension sets it.
        eventually("it is on all nodes", || {
            guard.extend(LONG).is_ok() && servers.holders("report") == 3
        });
        spoil(&servers[0]);
        guard.extend(LONG)?;
        spoil(&servers[0]);
        assert!(other.mutex("report").try_lock().is_err(), "{i}");
        spoil(&servers[0]);
        assert!(guard.is_valid(), "{i}");
        guard.release()?;

        spoil(&servers[0]);
        let guard = locks.mutex("report").lock()?;
        // Two of three count, and no more.
        eventually("the others have it", || servers.holders("report") >= 2);
        servers[1].kill()?;
        spoil(&servers[0]);
        let extended = guard.extend(LONG);
        assert_matches!(extended, Err(ExtendError::NoQuorum { .. }));
        drop(guard);
        server_is_silent_for_all(&servers[0], i != 3);
    }
    Ok(())
}

/// For a manager that comes now; where it may look.
fn server_is_silent_for_all(server: &devnodes::Server, may_look: bool) {
    let options = builder([server.url()]).quarantine(true);
    let locks = options.max_ttl(QUARANTINE).build().unwrap();
    let err = locks.mutex("report").try_lock().unwrap_err();
    match failure(&err, 0) {
        NodeFailure::Quarantined { .. } => assert!(may_look),
        NodeFailure::Access { .. } => assert!(!may_look),
        other => panic!("{other}"),
    }
}

/// The servers have a `max_ttl` of ten minutes, as one program has, and the other some twenty seconds. The first one cannot reach
/// one of the servers, holds a lock on the others, and one of these is emptied.
#[test]
fn h27_programs_with_different_ttls_exclude_despite_partitions() -> TestResult {
    for (long_first, cut_off) in [
        (true, None),
        (true, Some(2)),
        (true, Some(1)),
        (false, None),
        (false, Some(2)),
        (false, Some(1)),
    ] {
        let servers = Servers::start(3)?;
        servers.iter().for_each(|it| remember(it, 600_000));
        let (proxies, urls) = proxies(&servers);
        cut_off.iter().for_each(|it| proxies[*it].refuse(true));
        let long = builder(urls)
            .quarantine(true)
            .max_ttl(QUARANTINE)
            .connect_timeout(ms(500))
            .build()?;
        let short = strict(&servers).build()?;
        if !long_first {
            connect(&short, 3);
        }
        let guard = lock_in_the_end(&long, "report");
        let on_others = |it: usize| Some(it) == cut_off || servers[it].exists("report");
        eventually("it is on all that it reaches", || (0..3).all(on_others));

        servers[0].command(&["FLUSHALL"])?;
        let mut last = String::new();
        eventually("the short one knows how long the other needs", || {
            let err = short
                .mutex("report")
                .try_lock()
                .map(drop)
                .expect_err("two hold");
            last = err.to_string();
            matches!(answer(&err, 0), NodeAnswer::Failed(NodeFailure::Quarantined { left, .. }) if secs(400) < *left)
        });
        assert!(guard.is_valid(), "{last}");
    }
    Ok(())
}

#[test]
fn r6_a_quarantined_node_does_not_extend_a_lock() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = with_quarantine(servers.urls(), secs(3)).build()?;
    drop(locks.mutex("report").lock()?);
    connect(&locks, 3);
    for how in ["restart", "flush"] {
        eventually("all of them count", || locks.stats().quarantined.is_empty());
        let guard = locks.mutex("report").lock()?;
        eventually("all have it", || holders(&servers) == [true; 3]);
        if how == "restart" {
            servers[2].kill()?;
            servers[2].restart()?;
        } else {
            servers[2].command(&["FLUSHALL"])?;
        }
        eventually("the lock stands there again", || {
            servers[2].exists("report")
        });

        // With the one that forgot it would be a majority.
        del(&servers[1], "report");
        set_px(&servers[1], "report", "theirs", 60_000);
        let err = guard.extend(secs(3)).unwrap_err();

        assert_matches!(err, ExtendError::NoQuorum { .. });
        assert!(err.to_string().contains("quarantined"), "{how}: {err}");
        del(&servers[1], "report");
        drop(guard);
    }
    Ok(())
}

#[test]
fn d9_a_constantly_healed_lock_leaves_no_key_after_its_release() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = builder(servers.urls()).ttl(LONG).build()?;
    for round in 0..200 {
        let guard = locks.mutex("report").lock()?;
        servers[round % 3].command(&["DEL", "report"])?;
        // Confirmed by two, and the third is being healed while this is released.
        guard.extend(LONG)?;
        guard.release()?;
    }
    assert!(0 < locks.stats().healed, "{:?}", locks.stats());
    nothing_is_left(&servers);
    Ok(())
}
