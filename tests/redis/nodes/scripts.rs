//! When servers are given the scripts.

use devnodes::{Server, Servers, eventually};
use quorlock::LockManager;

use crate::support::*;

/// How often the server was asked about scripts, or given one.
fn asked_or_given(server: &Server) -> u64 {
    match calls(server, "script") {
        0 => calls(server, "script|exists") + calls(server, "script|load"),
        // Early servers count them together.
        both => both,
    }
}

/// Scripts that a login gives to a server that does not know them.
const NEEDED: u64 = 4;

/// How often the server was told to run a script that it did not know.
fn misses(server: &Server) -> Option<String> {
    server.info("errorstat_NOSCRIPT")
}

/// Asserts how often it was asked about scripts or given one, and how often it did not know one.
#[track_caller]
fn assert_counts(server: &Server, expected: u64, expected_misses: u64) {
    assert_eq!(asked_or_given(server), expected);
    assert_eq!(misses(server), Some(format!("count={expected_misses}")));
}

/// Takes a lock, extends it and gives it back.
fn use_a_lock(locks: &LockManager) -> TestResult {
    let guard = locks.mutex("report").lock()?;
    guard.extend(secs(20))?;
    guard.release()?;
    Ok(())
}

#[test]
fn a_server_is_given_what_every_lock_needs_by_its_first_connection_and_by_no_other() -> TestResult {
    needs!(ErrorCounts);
    let servers = Servers::start(1)?;
    for connections in 1..=2 {
        use_a_lock(&connected(builder(servers.urls()), 1))?;
        // One miss: the sync of the first connection.
        assert_counts(&servers[0], NEEDED + connections, 1);
    }
    assert_eq!(calls(&servers[0], "eval"), 0);
    Ok(())
}

#[test]
fn the_next_connection_gives_scripts_to_a_server_that_lost_them() -> TestResult {
    needs!(ErrorCounts);
    let servers = Servers::start(1)?;
    use_a_lock(&connected(builder(servers.urls()), 1))?;
    servers[0].command(&["SCRIPT", "FLUSH"])?;
    use_a_lock(&connected(builder(servers.urls()), 1))?;
    assert_counts(&servers[0], 2 * NEEDED + 2, 2);

    let locks = connected(builder(servers.urls()), 1);
    servers[0].kill()?;
    servers[0].restart()?;
    eventually("it is used again", || use_a_lock(&locks).is_ok());
    assert_counts(&servers[0], NEEDED + 1, 1);
    Ok(())
}

#[test]
fn another_script_goes_along_with_the_first_command_of_a_connection_that_needs_it() -> TestResult {
    needs!(ErrorCounts);
    let servers = Servers::start(3)?;
    for connection in 1..=2 {
        let locks = connected(builder(servers.urls()), 3);
        for _ in 0..3 {
            locks.mutex("report").inspect()?;
        }
        for server in &servers {
            assert_eq!(calls(server, "eval"), connection);
            assert_counts(server, NEEDED + connection, 1);
        }
    }
    Ok(())
}
