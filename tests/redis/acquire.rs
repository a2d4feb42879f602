//! Taking and giving back a lock.

use devnodes::Servers;
use quorlock::LockManager;

type TestResult = Result<(), Box<dyn std::error::Error>>;

#[test]
fn a_lock_is_taken_on_a_majority_and_is_gone_after_its_scope() -> TestResult {
    let servers = Servers::start(5)?;
    let locks = LockManager::builder(servers.urls()).build()?;

    let guard = locks.mutex("report").try_lock()?;
    assert!(guard.is_valid());
    assert!(3 <= servers.holders("report"));
    let err = locks.mutex("report").try_lock().unwrap_err();
    assert!(err.is_held(), "{err}");
    eprintln!("{err}");
    let first = guard.fencing_token();
    drop(guard);

    servers.wait_until_free("report")?;
    let again = locks.mutex("report").try_lock()?;
    assert!(first < again.fencing_token());
    eprintln!("{:?}", again.release()?);
    Ok(())
}
