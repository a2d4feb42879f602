//! One of three servers that is no good costs its own vote only: `quorlock run -n` gets the lock.

use std::time::Duration;

use devnodes::{FakeServer, Servers, Spoiled, eventually, spoil};
use quorlock::LockManager;

use crate::support::*;

/// All servers have a short quarantine behind them.
fn used() -> Servers {
    let servers = Servers::start(3).unwrap();
    let locks = LockManager::builder(servers.urls())
        .ttl(Duration::from_secs(2))
        .max_ttl(Duration::from_secs(2))
        .response_timeout(Duration::from_millis(500))
        .connect_timeout(Duration::from_secs(2))
        .build()
        .unwrap();
    eventually("all of them vote", || {
        drop(locks.mutex("used").lock().unwrap());
        locks.check_nodes().iter().all(|row| row.failure.is_none())
    });
    servers
}

fn the_first_call_wins(how: Spoiled) -> TestResult {
    let servers = used();
    let fake = spoil(&servers[2], how)?;
    let mut urls = servers.urls();
    urls[2] = fake.as_ref().map_or(servers[2].url(), FakeServer::url);
    let output = quorlock_at(&urls)
        .env_remove("QUORLOCK_NO_QUARANTINE")
        .env("QUORLOCK_TTL", "2")
        .env("QUORLOCK_MAX_TTL", "2")
        .env("QUORLOCK_RESPONSE_TIMEOUT", "500ms")
        .env("QUORLOCK_CONNECT_TIMEOUT", "2")
        .args(["run", "-n", "report", "--", "true"])
        .output()?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    Ok(())
}

#[test]
fn beside_a_full_server_the_first_call_wins() -> TestResult {
    the_first_call_wins(Spoiled::Full)
}

#[test]
fn beside_a_server_that_cannot_save_the_first_call_wins() -> TestResult {
    the_first_call_wins(Spoiled::CannotSave)
}

#[test]
fn beside_a_read_only_server_the_first_call_wins() -> TestResult {
    the_first_call_wins(Spoiled::ReadOnly)
}

#[test]
fn beside_a_server_that_hangs_the_first_call_wins() -> TestResult {
    the_first_call_wins(Spoiled::Hangs)
}

#[test]
fn beside_a_server_that_hangs_in_the_login_the_first_call_wins() -> TestResult {
    the_first_call_wins(Spoiled::HangsInLogin)
}

#[test]
fn beside_a_server_that_hangs_after_the_login_the_first_call_wins() -> TestResult {
    the_first_call_wins(Spoiled::HangsAfterLogin)
}

#[test]
fn beside_a_server_that_refuses_the_login_the_first_call_wins() -> TestResult {
    the_first_call_wins(Spoiled::RefusesLogin)
}
