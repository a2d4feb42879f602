//! Building a manager: every problem at once, no secrets, no network.

use std::time::Duration;

use devnodes::{FakeServer, Servers, eventually};
use quorlock::error::{BuildProblem, NodeAnswer, NodeFailure};
use quorlock::{BuildError, LockManager};

use crate::support::*;

fn problems(err: &BuildError) -> Vec<String> {
    err.problems().iter().map(|it| format!("{it:?}")).collect()
}

#[test]
fn building_touches_no_network() -> TestResult {
    let fake = FakeServer::accept_and_close()?;

    let locks = builder([fake.url()]).build()?;
    let unused = builder([fake.url()]).build()?;
    let _description = unused.mutex("report");
    // Its threads have ended, so nothing can come later.
    drop((_description, unused));
    assert_eq!(fake.connections(), 0);

    assert_no_quorum(&locks.mutex("report").try_lock().unwrap_err());
    assert!(1 <= fake.connections());
    Ok(())
}

#[test]
fn a_manager_is_built_while_all_nodes_are_down_and_works_once_they_are_up() -> TestResult {
    needs!(ClosedPorts);
    let servers = Servers::start(3)?;
    for server in &servers {
        server.kill()?;
    }

    let locks = manager(&servers);
    let err = locks.mutex("report").try_lock().unwrap_err();
    assert_no_quorum(&err);
    // The round is over with the second of them.
    let refused = err
        .nodes()
        .iter()
        .filter(|it| matches!(it.answer, NodeAnswer::Failed(NodeFailure::Connect { .. })));
    assert!(2 <= refused.count(), "{err:?}");

    for server in &servers {
        server.restart()?;
    }
    drop(locks.mutex("report").lock()?);
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn all_problems_are_reported_at_once_and_without_secrets() {
    let err = LockManager::builder([
        "redis://zoe:hunter2@127.0.0.1:7001",
        "http://zoe:hunter2@127.0.0.1:7002",
        "redis://zoe:hunter2@127.0.0.1:port",
        "hunter2",
        "redis://bob:hunter2@127.0.0.1:7001/3",
        "redis://zoe:hunter2@127.0.0.1/hunter2",
        "redis://127.0.0.1:0",
    ])
    .ttl(Duration::ZERO)
    .response_timeout(Duration::ZERO)
    .connect_timeout(secs(3600))
    .retry_delay(secs(2), secs(1))
    .clock_margin(f64::NAN, ms(2))
    .max_hold(ms(1))
    .fencing_ttl(Some(ms(1)))
    .shutdown_grace(Duration::MAX)
    .prefix(vec![b'x'; 100_000])
    .build()
    .unwrap_err();

    let found = problems(&err);
    let of = |what: &str| found.iter().filter(|it| it.contains(what)).count();
    assert_eq!(of("BadAddress"), 5, "{found:#?}");
    assert_eq!(of("DuplicateNode { first: 0, second: 4"), 1, "{found:#?}");
    for option in [
        "\"ttl\"",
        "\"response_timeout\"",
        "\"connect_timeout\"",
        "\"fencing_ttl\"",
        "\"shutdown_grace\"",
    ] {
        assert_eq!(of(option), 1, "{option}: {found:#?}");
    }
    assert_eq!(
        (
            of("\"retry_delay\""),
            of("\"clock_margin\""),
            of("\"prefix\"")
        ),
        (1, 1, 1),
        "{found:#?}"
    );
    let text = format!("{err} {err:?}");
    assert!(!text.contains("hunter2") && !text.contains("zoe"), "{text}");
}

#[test]
fn no_nodes_and_too_many_nodes_are_problems() {
    let err = LockManager::builder(Vec::<String>::new())
        .build()
        .unwrap_err();
    assert_eq!(err.problems(), [BuildProblem::NoNodes]);

    let urls = (0..32).map(|i| format!("redis://127.0.0.1:{}", 7000 + i));
    let err = LockManager::builder(urls).build().unwrap_err();
    assert_eq!(
        err.problems(),
        [BuildProblem::TooManyNodes { count: 32, max: 31 }]
    );
}

#[test]
fn b1_the_same_address_twice_is_a_problem_however_it_is_written() {
    for (first, second) in [
        ("redis://127.0.0.1:7001", "redis://127.0.0.1:7001"),
        ("redis://127.0.0.1:7001", "redis://:pw@127.0.0.1:7001/5"),
        ("redis://127.0.0.1", "redis://127.0.0.1:6379"),
        ("redis://LOCALHOST:7001", "valkey://localhost:7001"),
        ("redis+unix:///tmp/a.sock", "redis+unix:///tmp/a.sock?db=2"),
        (
            "redis+replicated://10.0.0.1,10.0.0.2",
            "redis+replicated://:pw@10.0.0.1:6379,10.0.0.3",
        ),
        (
            "redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/a",
            "redis+sentinel://10.0.0.1,10.0.0.3,10.0.0.2/a?sentinel_password=pw",
        ),
    ] {
        let err = LockManager::builder([first, second]).build().unwrap_err();
        let problem = matches!(
            err.problems(),
            [BuildProblem::DuplicateNode {
                first: 0,
                second: 1,
                ..
            }]
        );
        assert!(problem, "{first} {second}: {err:?}");
        assert!(!err.to_string().contains("pw"), "{err}");
    }
}

#[test]
fn a12_ttls_that_cannot_work_are_problems() {
    for ttl in [
        Duration::ZERO,
        Duration::from_nanos(1),
        ms(99),
        secs(3601),
        Duration::MAX,
    ] {
        let err = LockManager::builder(["redis://127.0.0.1"])
            .ttl(ttl)
            .build()
            .unwrap_err();
        assert!(
            matches!(
                err.problems(),
                [BuildProblem::BadOption { option: "ttl", .. }]
            ),
            "{ttl:?}: {err:?}"
        );
    }
    let err = LockManager::builder(["redis://127.0.0.1"])
        .ttl(ms(399))
        .build()
        .unwrap_err();
    assert!(
        matches!(
            err.problems(),
            [BuildProblem::BadOption { option: "ttl", .. }]
        ),
        "{err:?}"
    );
    let err = LockManager::builder(["redis://127.0.0.1"])
        .clock_margin(0.0, secs(6))
        .build()
        .unwrap_err();
    assert!(
        matches!(
            err.problems(),
            [BuildProblem::BadOption {
                option: "clock_margin",
                ..
            }]
        ),
        "{err:?}"
    );
}

#[test]
fn thirty_one_nodes_are_allowed_and_work() -> TestResult {
    // The same few servers would be the same node: the rest is down, and that is fewer than half.
    let servers = Servers::start(16)?;
    let mut urls = servers.urls();
    let down = Servers::start(1)?;
    down[0].kill()?;
    urls.extend((1..=15).map(|i| format!("redis://127.0.1.{i}:{}", down[0].port())));

    let locks = builder(urls).build()?;
    let guard = locks.mutex("report").try_lock()?;

    assert_eq!(servers.holders("report"), 16);
    drop(guard);
    eventually("it is released", || servers.holders("report") == 0);
    Ok(())
}
