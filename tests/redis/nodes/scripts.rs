//! When servers are given the scripts.

use devnodes::{Server, Servers, eventually};
use quorlock::LockManager;

use crate::support::*;

/// Scripts of a lock that is taken, extended and released.
const FIRST_USES: u64 = 3;

/// How often the server was told to run a script that it did not know.
fn misses(server: &Server) -> Option<String> {
    server.info("errorstat_NOSCRIPT")
}

/// Takes a lock, extends it and gives it back.
fn use_a_lock(locks: &LockManager) -> TestResult {
    let guard = locks.mutex("report").lock()?;
    guard.extend(secs(20))?;
    guard.release()?;
    Ok(())
}

#[test]
fn the_first_use_of_a_script_on_a_connection_has_its_source_and_no_other_has() -> TestResult {
    needs!(ErrorCounts);
    let servers = Servers::start(1)?;
    for connections in 1..=2 {
        let locks = connected(builder(servers.urls()), 1);
        for _ in 0..3 {
            use_a_lock(&locks)?;
        }
        // The first login finds that the script of the sync is missing, and sends its source.
        assert_eq!(calls(&servers[0], "eval"), 1 + FIRST_USES * connections);
        assert_eq!(misses(&servers[0]).as_deref(), Some("count=1"));
    }
    Ok(())
}

#[test]
fn the_next_connection_loads_lost_scripts() -> TestResult {
    needs!(ErrorCounts);
    let servers = Servers::start(1)?;
    use_a_lock(&connected(builder(servers.urls()), 1))?;
    servers[0].command(&["SCRIPT", "FLUSH"])?;
    let locks = connected(builder(servers.urls()), 1);
    use_a_lock(&locks)?;
    // One for each login: that of the sync.
    assert_eq!(misses(&servers[0]).as_deref(), Some("count=2"));

    servers[0].kill()?;
    servers[0].restart()?;
    eventually("it is used again", || use_a_lock(&locks).is_ok());
    assert_eq!(misses(&servers[0]).as_deref(), Some("count=1"));
    Ok(())
}

#[test]
fn a_script_that_a_server_lost_is_sent_again_once() -> TestResult {
    needs!(ErrorCounts);
    let servers = Servers::start(1)?;
    let locks = connected(builder(servers.urls()), 1);
    use_a_lock(&locks)?;
    servers[0].command(&["SCRIPT", "FLUSH"])?;
    for _ in 0..3 {
        use_a_lock(&locks)?;
    }
    assert_eq!(
        misses(&servers[0]).as_deref(),
        Some("count=4"),
        "also one of the login"
    );
    Ok(())
}
