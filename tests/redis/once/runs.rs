//! One run per period, and what becomes of its record.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use devnodes::{Servers, eventually};
use quorlock::once::{Job, RunState, WhenUnsure};
use quorlock::{AcquireError, CancelHandle, LockManager, Once, OnceError};

use crate::support::*;

type Outcome<T> = Result<Once<T>, OnceError<T, String>>;

const HOUR: Duration = secs(3_600);

pub(crate) fn done_key(name: &str) -> String {
    format!("quorlock:done:{name}")
}

/// Nodes with a record of the job.
pub(crate) fn recorded(servers: &Servers, name: &str) -> usize {
    let has = servers.iter().filter(|it| it.exists(done_key(name)));
    has.count()
}

pub(crate) fn run(job: &Job) -> Outcome<u64> {
    job.run(|run| Ok(run.token().get()))
}

pub(crate) fn hourly(locks: &LockManager) -> Job {
    locks.once("report").every(HOUR)
}

fn fail(job: &Job) -> Outcome<u64> {
    job.run(|_| Err("out of paper".to_owned()))
}

#[test]
fn m1_a_job_runs_once_and_every_other_manager_finds_it_done() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    let others = connected(builder(servers.urls()).owner_label("other"), 3);
    let ran = locks.once("report").every(HOUR).run(|run| {
        run.note("31 pages");
        assert!(run.is_valid() && run.name() == b"report");
        std::io::Result::Ok((run.token(), run.period()))
    })?;
    let Once::Ran((token, period)) = ran else {
        panic!("{ran:?}")
    };

    for locks in [&locks, &others] {
        let before: Vec<_> = servers.iter().map(scripts_run).collect();
        let found = run(&hourly(locks));
        let Ok(Once::Done(record)) = found else {
            panic!("{found:?}")
        };
        let asked = servers
            .iter()
            .zip(before)
            .map(|(it, before)| scripts_run(it) - before);
        assert!(asked.into_iter().all(|it| it == 1), "more than a look");
        assert_eq!((record.token, record.period), (token, period));
        assert_eq!((&*record.note, record.state), ("31 pages", RunState::Done));
        assert!(record.began <= record.at && record.at <= SystemTime::now() + HOUR);
        assert_eq!(locks.once("report").last_run()?, Some(record));
    }
    assert_eq!(locks.once("another").last_run()?, None);
    assert_eq!(recorded(&servers, "report"), 3);
    let life = servers[0].pttl(done_key("report"));
    assert!(7_100_000 < life && life <= 7_200_000, "{life}");
    Ok(())
}

#[test]
fn m1_a_run_that_fails_panics_or_is_not_recorded_is_repeated_by_the_next_caller() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    assert_eq!(
        fail(&hourly(&locks)),
        Err(OnceError::Failed("out of paper".to_owned()))
    );
    let panicked = thread::scope(|scope| {
        let job = hourly(&locks);
        let panics =
            move || job.run(|_| -> Result<(), String> { std::panic::resume_unwind(Box::new("x")) });
        scope.spawn(panics).join()
    });
    assert!(panicked.is_err());
    assert_eq!(recorded(&servers, "report"), 0);

    assert_matches!(run(&hourly(&locks)), Ok(Once::Ran(_)));
    assert_matches!(run(&hourly(&locks)), Ok(Once::Done(_)));
    Ok(())
}

#[test]
fn m1_a_failure_that_counts_is_found_as_a_failure() -> TestResult {
    let (_servers, locks) = start_connected(3, builder);
    assert_matches!(
        fail(&hourly(&locks).failures_count(true)),
        Err(OnceError::Failed(_))
    );
    let found = run(&hourly(&locks));
    let Ok(Once::Done(record)) = found else {
        panic!("{found:?}")
    };
    assert_eq!(record.state, RunState::Failed);
    assert_contains(record, "failed by ");
    Ok(())
}

#[test]
fn m1_periods_fire_times_and_orders_are_distinct() -> TestResult {
    let (_servers, locks) = start_connected(3, builder);
    let now = SystemTime::now();
    let fired = |ago: u64| locks.once("fired").fire_time(now - secs(ago));
    assert_matches!(run(&fired(60)), Ok(Once::Ran(_)));
    assert_matches!(run(&fired(60)), Ok(Once::Done(_)));
    assert_matches!(run(&fired(0)), Ok(Once::Ran(_)));
    // A late instance.
    assert_matches!(run(&fired(60)), Ok(Once::Done(_)));

    let order = |id: u64| locks.once(format!("payment:{id}")).keep(HOUR).made_at(now);
    for id in [1, 2] {
        assert_matches!(run(&order(id)), Ok(Once::Ran(_)));
        assert_matches!(run(&order(id)), Ok(Once::Done(_)));
    }
    for other in [
        locks.once("fired").every(HOUR),
        locks.once("fired").keep(HOUR),
    ] {
        assert_matches!(run(&other), Err(OnceError::OtherPeriod(_)));
    }
    assert_matches!(
        run(&locks.once("payment:1").fire_time(now)),
        Err(OnceError::OtherPeriod(_))
    );
    for wrong in [
        locks.once("x"),
        locks.once("x").every(ms(1)),
        locks.once("x").keep(Duration::ZERO),
        locks.once("quorlock:x").keep(HOUR),
    ] {
        assert_matches!(
            run(&wrong),
            Err(OnceError::NotAcquired(
                AcquireError::BadTtl(_) | AcquireError::NameReserved
            ))
        );
    }
    Ok(())
}

#[test]
fn m1_the_next_period_is_run_again() -> TestResult {
    let (_servers, locks) = start_connected(3, builder);
    let job = locks.once("report").every(secs(1));
    let mut ran = Vec::new();
    eventually("three periods are over", || {
        match job
            .run(|run| Result::<_, String>::Ok(run.period()))
            .unwrap()
        {
            Once::Ran(period) => ran.push(period),
            Once::Done(record) => assert!(ran.contains(&record.period), "{ran:?} {record:?}"),
            Once::Running(by) => panic!("{by:?}"),
        }
        ran.len() == 3
    });
    assert!(ran.is_sorted_by(|one, next| one < next), "{ran:?}");
    Ok(())
}

#[test]
fn m4_a_second_caller_leaves_the_job_to_the_first_or_waits_for_its_end() -> TestResult {
    let (_servers, locks) = start_connected(3, |urls| builder(urls).owner_label("first"));
    for fails in [false, true] {
        let job = || locks.once(format!("job-{fails}")).every(HOUR);
        thread::scope(|scope| {
            let (waits, cancelled) = (job().wait(true), CancelHandle::new());
            let gives_up = job().wait(true).cancelled_by(&cancelled);
            let ran = job().run(|_| {
                let by = run(&job());
                let Ok(Once::Running(Some(by))) = &by else {
                    panic!("{by:?}")
                };
                assert_contains(by, "/first");
                assert_matches!(run(&job().wait_for(ms(20))), Ok(Once::Running(Some(_))));
                let waiting = scope.spawn(move || run(&waits));
                let gives_up = scope.spawn(move || run(&gives_up));
                eventually("both wait", || locks.stats().waiting == 2);
                cancelled.cancel();
                let cancelled = gives_up.join().unwrap();
                assert_eq!(cancelled, Err(AcquireError::Cancelled.into()));
                if fails {
                    Err("in vain".to_owned())
                } else {
                    Ok(waiting)
                }
            });
            if let Ok(Once::Ran(waiting)) = ran {
                assert_matches!(waiting.join().unwrap(), Ok(Once::Done(_)));
            } else {
                eventually("the waiting call has run it", || {
                    matches!(run(&job()), Ok(Once::Done(_)))
                });
            }
        });
    }
    Ok(())
}

#[test]
fn m4_a_racing_fleet_leaves_no_period_without_a_run() -> TestResult {
    let servers = Servers::start(3)?;
    let fleet: Vec<_> = repeat(8, || connected(builder(servers.urls()), 3));
    for round in 0..40 {
        let (name, runs) = (format!("job-{round}"), AtomicUsize::new(0));
        thread::scope(|scope| {
            for locks in &fleet {
                scope.spawn(|| {
                    let found = locks.once(&name).every(HOUR).run(|_| {
                        runs.fetch_add(1, Ordering::Relaxed);
                        Result::<_, String>::Ok(())
                    });
                    assert!(found.is_ok(), "{found:?}");
                });
            }
        });
        assert_eq!(runs.into_inner(), 1, "round {round}");
    }
    Ok(())
}

#[test]
fn m3_a_late_record_is_not_written_beside_another_holder() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| with_ttl(urls, secs(2)));
    let ended = hourly(&locks).run(|run| {
        // As after a pause longer than the ttl.
        for server in servers.iter().take(2) {
            set_px(server, "report", "another's", 600_000);
        }
        assert_eq!(announced(&run.lost()), quorlock::LostReason::Gone);
        Result::<_, String>::Ok("precious")
    });

    let Err(OnceError::NotRecorded { value, nodes }) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!((value, nodes.len()), ("precious", 3));
    assert!(recorded(&servers, "report") <= 1);
    assert!(
        servers
            .iter()
            .take(2)
            .all(|it| !it.exists(done_key("report")))
    );
    Ok(())
}

/// Its keys stay, as a late grant might leave them.
#[test]
fn m3_a_record_behind_the_end_of_the_lease_is_no_success() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| with_ttl(urls, secs(2)));
    let ended = hourly(&locks).renew(false).run(|run| {
        command_all(&servers, &["PERSIST", "report"]);
        assert_eq!(announced(&run.lost()), quorlock::LostReason::LeaseOver);
        Result::<_, String>::Ok("precious")
    });
    assert_matches!(
        ended,
        Err(OnceError::NotRecorded {
            value: "precious",
            ..
        })
    );
    Ok(())
}

#[test]
fn m3_a_run_that_no_majority_can_record_keeps_its_value() -> TestResult {
    let (servers, locks) = start_connected(3, |urls| with_ttl(urls, secs(2)));
    let ended = hourly(&locks).run(|_| {
        servers.iter().take(2).for_each(|it| it.kill().unwrap());
        Result::<_, String>::Ok(7)
    });
    let Err(OnceError::NotRecorded { value: 7, nodes }) = ended else {
        panic!("{ended:?}")
    };
    assert_contains(
        OnceError::<_, String>::NotRecorded { value: 7, nodes },
        "it may run again",
    );
    Ok(())
}

#[test]
fn m3_a_record_reaches_a_majority_although_a_node_with_the_lock_has_died() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    let ended = hourly(&locks).run(|_| {
        // The lock is on two nodes, and one of them dies.
        del(&servers[0], "report");
        servers[1].kill().unwrap();
        Result::<_, String>::Ok(())
    });
    assert_matches!(ended, Ok(Once::Ran(())));
    assert!(
        [0, 2]
            .into_iter()
            .all(|it| servers[it].exists(done_key("report")))
    );
    Ok(())
}

#[test]
fn m5_an_aborted_run_at_most_once_needs_a_person() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    let job = || hourly(&locks).at_most_once();
    assert_matches!(fail(&job()), Err(OnceError::Failed(_)));
    assert_eq!(recorded(&servers, "report"), 3);

    // Whatever the next caller asks for.
    for next in [job(), hourly(&locks)] {
        let found = run(&next);
        let Err(OnceError::Abandoned(record)) = &found else {
            panic!("{found:?}")
        };
        assert_eq!(record.state, RunState::Begun);
    }
    assert_matches!(run(&job().again(true)), Ok(Once::Ran(_)));
    assert_matches!(run(&job().again(true)), Ok(Once::Done(_)));
    Ok(())
}

#[test]
fn m5_a_run_at_most_once_is_recorded_as_begun_before_its_closure() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    servers[2].kill()?;
    let others = connected(builder(servers.urls()), 2);
    let ended = hourly(&locks).at_most_once().run(|_| {
        let begun = servers
            .iter()
            .take(2)
            .filter_map(|it| it.get(done_key("report")));
        assert_eq!(begun.filter(|it| it.starts_with(b"1 begun ")).count(), 2);
        assert_matches!(run(&hourly(&others)), Ok(Once::Running(_)));
        Result::<_, String>::Ok(())
    });
    assert_matches!(ended, Ok(Once::Ran(())));
    Ok(())
}

#[test]
fn m1_one_of_many_threads_pays_an_order() -> TestResult {
    let (_servers, locks) = start_connected(3, builder);
    let paid = Arc::new(Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for payer in 0..8 {
            let (locks, paid) = (&locks, Arc::clone(&paid));
            scope.spawn(move || {
                let payment = locks.once("payment:1").keep(HOUR).wait(true);
                let found = payment.run(|_| {
                    paid.lock().unwrap().push(payer);
                    Result::<_, String>::Ok(())
                });
                assert_matches!(found, Ok(Once::Ran(()) | Once::Done(_)));
            });
        }
    });
    assert_eq!(paid.lock().unwrap().len(), 1);
    Ok(())
}

#[test]
fn m2_an_unreadable_record_proves_nothing() -> TestResult {
    let (servers, locks) = start_connected(3, builder);
    let job = || hourly(&locks).when_unsure(WhenUnsure::Refuse);
    for garbage in [
        "x",
        "9 done",
        "2 done 9 9 9",
        "\r\n+OK\r\n",
        &"x".repeat(3_000),
    ] {
        set_all(&servers, &done_key("report"), garbage);
        assert_matches!(run(&job()), Err(OnceError::Unsure { .. }));
        assert_eq!(job().last_run()?, None);
    }
    // A list is no record either.
    for server in servers.iter() {
        del(server, &done_key("report"));
        server.command(&["LPUSH", &done_key("report"), "x"])?;
    }
    assert_matches!(run(&job()), Ok(Once::Ran(_)));
    assert_eq!(recorded(&servers, "report"), 3);
    Ok(())
}
