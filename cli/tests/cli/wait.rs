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

    let output = with_quarantine(&servers)
        .args(["doctor", "--wait", "--json"])
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
    let began = Instant::now();

    let mut wait = Terminal::start(with_short_quarantine(&servers).args(["doctor", "--wait"]));
    wait.wait_for(&format!("n0 ({}): no vote for ", servers[0].addr()));
    // A new program counts the same quarantine. Nobody asks for a lock: the wait itself begins it.
    assert_eq!(wait.status(), Some(0));
    assert!(MAX_TTL <= began.elapsed());
    wait.wait_for("3 of 3 servers vote\r\n");
    let program = LockManager::builder(servers.urls())
        .ttl(MAX_TTL)
        .max_ttl(MAX_TTL);
    let rows = program
        .response_timeout(RESPONSE_TIMEOUT)
        .build()?
        .check_nodes();
    assert!(rows.iter().all(|row| row.failure.is_none()), "{rows:?}");
    Ok(())
}

#[test]
fn a_wait_for_unused_new_servers_ends_and_prints_each_line_once() -> TestResult {
    let servers = Servers::start(3)?;
    let output = with_short_quarantine(&servers)
        .args(["doctor", "--wait"])
        .output()?;
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    // Each may be seen without its record once.
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(text.matches("no vote for ").count(), 3, "{text}");
    assert!(
        text.trim_end()
            .ends_with("if new and never used: quorlock vouch"),
        "{text}"
    );
    Ok(())
}

#[test]
fn a_wait_raises_no_max_ttl_and_begins_no_quarantine_without_one() -> TestResult {
    let servers = fit()?;
    let before = servers[0].command(&["GET", "quorlock:record"])?;
    let wait = |command: &mut Command| command.args(["doctor", "--wait=0"]).output();
    assert!(wait(&mut with_quarantine(&servers))?.status.success());
    assert_eq!(servers[0].command(&["GET", "quorlock:record"])?, before);

    let servers = Servers::start(3)?;
    let mut without = with_quarantine(&servers);
    without.env("QUORLOCK_NO_QUARANTINE", "1");
    assert!(wait(&mut without)?.status.success());
    assert!(servers.iter().all(|server| server.key_count() == 0));
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
fn a_held_lock_that_a_server_lacks_is_shown_and_waited_for() -> TestResult {
    const TTL: Duration = Duration::from_secs(600);
    let servers = Servers::start(3)?;
    let locks = patient(&servers.urls()).ttl(TTL).build()?;
    let guard = locks.mutex("report").lock()?;
    eventually("all have it", || servers.holders("report") == 3);
    servers[2].command(&["DEL", "report"])?;
    for (args, says) in [
        (&["status", "report"][..], ", NOT ON n2\n"),
        (&["doctor", "--looks=1"], "note: report, NOT ON n2\n"),
        (&["doctor", "--wait=0"], "report, NOT ON n2\n"),
    ] {
        let said = stdout(&quorlock(&servers).args(args).output()?);
        assert!(said.contains(says), "{said}");
    }

    let mut wait = Terminal::start(quorlock(&servers).args(["doctor", "--wait"]));
    wait.wait_for("waiting for report, NOT ON n2");
    guard.extend(TTL)?;

    assert_eq!(wait.status(), Some(0));
    assert_eq!(servers.holders("report"), 3);
    Ok(())
}

#[test]
fn a_server_with_unlistable_locks_is_a_failure_of_doctor_wait() -> TestResult {
    let servers = Servers::start(3)?;
    servers[1].command(&[
        "ACL", "SETUSER", "locks", "on", ">pw", "~*", "&*", "+@all", "-scan",
    ])?;
    let mut urls = servers.urls();
    urls[1] = format!("redis://locks:pw@{}", servers[1].addr());

    let output = quorlock_at(&urls).args(["doctor", "--wait=0"]).output()?;

    let says = format!("the locks of n1 ({}): ", servers[1].addr());
    assert!(stdout(&output).starts_with(&says), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(69));
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
