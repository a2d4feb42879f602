//! When servers are given the scripts.

use devnodes::{Server, Servers};

use crate::support::*;

/// How often the server has run the command, and its kinds that are counted apart.
fn calls(server: &Server, command: &str) -> u64 {
    let lines = [format!("cmdstat_{command}"), format!("cmdstat_{}", command.split('|').next().unwrap())];
    let line = lines.iter().find_map(|it| server.info(it)).unwrap_or_default();
    let calls = line.split(',').find_map(|it| it.strip_prefix("calls=")).unwrap_or("0");
    calls.parse().unwrap()
}

/// How often the server was told to run a script that it did not know.
fn misses(server: &Server) -> Option<String> {
    server.info("errorstat_NOSCRIPT")
}

#[test]
fn a_connection_loads_what_every_lock_needs_and_nothing_more() -> TestResult {
    let servers = Servers::start(1)?;
    for connections in 1..=2 {
        let locks = connected(builder(servers.urls()), 1);
        let guard = locks.mutex("report").lock()?;
        guard.extend(secs(30))?;
        guard.release()?;

        assert_eq!(calls(&servers[0], "script|load"), 3 * connections);
    }
    assert_eq!((calls(&servers[0], "eval"), misses(&servers[0])), (0, None));
    Ok(())
}

#[test]
fn another_script_goes_along_with_the_first_command_of_a_connection_that_needs_it() -> TestResult {
    let servers = Servers::start(3)?;
    for connection in 1..=2 {
        let locks = connected(builder(servers.urls()), 3);
        for raises in 1..=3 {
            let counter = (in_an_hour() + connection * 100 + raises).to_string();
            servers.iter().for_each(|it| set(it, &fence("report"), &counter));
            locks.mutex("report").try_lock()?.release()?;
            assert_eq!(locks.stats().fencing_raises, raises);
            nothing_is_left(&servers);
        }
        for server in &servers {
            assert_eq!((calls(server, "eval"), calls(server, "script|load")), (connection, 3 * connection));
            assert_eq!(misses(server), None);
        }
    }
    Ok(())
}

#[test]
fn a_script_that_was_sent_along_and_forgotten_is_sent_again() -> TestResult {
    let servers = Servers::start(1)?;
    let locks = connected(builder(servers.urls()), 1);
    for raises in 1..=3 {
        servers[0].command(&["SCRIPT", "FLUSH"])?;
        set(&servers[0], &fence("report"), &(in_an_hour() + raises).to_string());

        locks.mutex("report").try_lock()?.release()?;

        assert_eq!(locks.stats().fencing_raises, raises);
    }
    assert!(misses(&servers[0]).is_some());
    Ok(())
}
