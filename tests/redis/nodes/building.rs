//! Building a manager: every problem at once, no secrets, no network.

use devnodes::FakeServer;
use quorlock::LockManager;
use quorlock::error::BuildProblem;

use crate::support::*;

#[test]
fn building_touches_no_network() -> TestResult {
    let fake = FakeServer::accept_and_close()?;

    let locks = builder([fake.url()]).build()?;
    let unused = builder([fake.url()]).build()?;
    let _handle = unused.mutex("report");
    // Its threads have ended, so nothing can come later.
    drop((_handle, unused));
    assert_eq!(fake.connections(), 0);

    assert_no_quorum(&locks.mutex("report").try_lock().unwrap_err());
    assert!(1 <= fake.connections());
    Ok(())
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
