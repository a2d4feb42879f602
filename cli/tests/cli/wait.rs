//! `quorlock doctor --wait`.

use std::process::Command;
use std::time::{Duration, Instant};

use devnodes::{Servers, eventually};
use quorlock::LockManager;
use serde_json::Value;

use crate::doctor::{fit, with_quarantine};
use crate::schema::assert_form;
use crate::support::*;

/// With a quarantine that a test can wait for.
const MAX_TTL: Duration = Duration::from_secs(2);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

fn with_short_quarantine(servers: &Servers) -> Command {
    let mut command = with_quarantine(servers);
    command
        .env("QUORLOCK_MAX_TTL", "2")
        .env("QUORLOCK_RESPONSE_TIMEOUT", "500ms");
    command
}

#[test]
fn servers_that_vote_are_not_waited_for() -> TestResult {
    let servers = fit()?;
    let output = with_quarantine(&servers)
        .args(["doctor", "--wait"])
        .output()?;
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "3 of 3 servers vote\n")
    );
    assert_eq!(stderr(&output), "");

    let mut by_variable = with_quarantine(&servers);
    let output = by_variable
        .env("QUORLOCK_DOCTOR_WAIT", "forever")
        .args(["doctor", "--json"])
        .output()?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(
        (output.status.code(), &json["votes"]),
        (Some(0), &true.into()),
        "{json}"
    );
    assert_form(&json, "wait");
    Ok(())
}

#[test]
fn an_emptied_server_is_waited_for_until_it_votes_again() -> TestResult {
    let servers = Servers::start(3)?;
    let vouched = with_short_quarantine(&servers)
        .args(["vouch", "--yes"])
        .output()?;
    assert!(vouched.status.success(), "{}", stdout(&vouched));
    servers[0].restart_empty()?;

    let mut wait = Terminal::start(with_short_quarantine(&servers).args(["doctor", "--wait"]));
    // Nothing is written, so its time does not begin.
    wait.wait_for(&format!(
        "n0 ({}): quarantined for 2.0 s after the next use of a lock",
        servers[0].addr()
    ));
    assert!(
        wait.said().contains("quarantined for 2.0 s more"),
        "{}",
        wait.said()
    );
    assert!(!servers[0].exists("quorlock:record"));
    let began = Instant::now();
    let program = LockManager::builder(servers.urls())
        .ttl(MAX_TTL)
        .max_ttl(MAX_TTL);
    let program = program.response_timeout(RESPONSE_TIMEOUT).build()?;
    drop(program.mutex("report").lock()?);
    eventually("the server is in use again", || {
        servers[0].exists("quorlock:record")
    });

    assert_eq!(wait.status(), Some(0));
    assert!(MAX_TTL <= began.elapsed());
    wait.wait_for("3 of 3 servers vote\r\n");
    Ok(())
}

#[test]
fn a_deadline_ends_the_wait_for_a_dead_server_with_its_row() -> TestResult {
    let servers = fit()?;
    servers[1].kill()?;
    let row = format!("n1 ({}): no vote: cannot connect: ", servers[1].addr());
    for (time, notices) in [("--wait=0", 0), ("--wait=1.5s", 1)] {
        let output = with_quarantine(&servers).args(["doctor", time]).output()?;
        assert_eq!(output.status.code(), Some(69), "{}", stdout(&output));
        assert!(
            stdout(&output).starts_with(&row) && stdout(&output).lines().count() == 1,
            "{}",
            stdout(&output)
        );
        assert_eq!(
            stderr(&output)
                .matches("quorlock: waiting for n1 (")
                .count(),
            notices,
            "{}",
            stderr(&output)
        );
    }
    let output = with_quarantine(&servers)
        .args(["doctor", "--json", "--wait=0"])
        .output()?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(
        (output.status.code(), &json["votes"]),
        (Some(69), &false.into())
    );
    assert_form(&json, "wait");
    Ok(())
}

#[test]
fn the_time_of_a_wait_is_checked() -> TestResult {
    for args in [&["doctor", "--wait=soon"][..], &["doctor", "--wait="]] {
        let output = bare().args(args).output()?;
        assert_eq!(
            output.status.code(),
            Some(64),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    Ok(())
}
