//! `quorlock doctor --sets` and `--forget`.

use std::process::{Command, Output};
use std::time::Duration;

use devnodes::{Servers, eventually};
use quorlock::LockManager;
use serde_json::Value;

use crate::schema::assert_form;
use crate::support::*;

const MAX_TTL: Duration = Duration::from_secs(2);

fn urls(servers: &Servers, numbers: &[usize]) -> Vec<String> {
    numbers.iter().map(|it| servers[*it].url()).collect()
}

/// A program that has noted its set on all of its servers.
fn program(servers: &Servers, numbers: &[usize]) -> LockManager {
    let builder = LockManager::builder(urls(servers, numbers))
        .ttl(MAX_TTL)
        .max_ttl(MAX_TTL);
    let locks = builder
        .response_timeout(Duration::from_millis(500))
        .owner_label(Some("web"))
        .build()
        .unwrap();
    eventually("the set is noted", || {
        drop(locks.mutex("report").try_lock());
        let is_whole = |it: &quorlock::error::ServerSet| {
            it.is_ours && it.size == numbers.len() && it.nodes.len() == numbers.len()
        };
        locks
            .check_nodes()
            .iter()
            .all(|it| it.sets.iter().any(is_whole))
    });
    locks
}

fn doctor(servers: &Servers, numbers: &[usize], options: &[&str]) -> Output {
    let mut command: Command = quorlock_at(&urls(servers, numbers));
    command
        .env_remove("QUORLOCK_NO_QUARANTINE")
        .arg("doctor")
        .args(options);
    command.output().unwrap()
}

#[test]
fn sets_in_use_are_shown_and_forgotten_and_nothing_is_written_by_looking() -> TestResult {
    let servers = Servers::start(4)?;
    let output = doctor(&servers, &[0, 1, 2], &["--sets"]);
    assert!(
        stdout(&output).ends_with("\n\nNo program has noted a set of servers here.\n"),
        "{}",
        stdout(&output)
    );
    assert_eq!(output.status.code(), Some(0));
    assert!(servers.iter().all(|it| !it.exists("quorlock:record")));

    let three = program(&servers, &[0, 1, 2]);
    let output = doctor(&servers, &[0, 1, 2], &["--sets"]);
    let line = |start: &str, output: &Output| {
        let text = stdout(output);
        let line = text
            .lines()
            .map(str::trim)
            .find(|it| it.starts_with(start))
            .unwrap_or_else(|| panic!("{text}"));
        line.split_ascii_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let ours = line("n0, n1, n2 ", &output);
    assert!(
        ours.starts_with("n0, n1, n2 n0, n1, n2 this hour ") && ours.ends_with("/web this set"),
        "{ours}"
    );
    assert_eq!(output.status.code(), Some(0));

    // One server more: safe, and both are in use.
    drop(program(&servers, &[0, 1, 2, 3]));
    let output = doctor(&servers, &[0, 1, 2, 3], &["--sets"]);
    let other = line("n0, n1, n2 ", &output);
    assert!(other.ends_with("/web safe"), "{other}");
    assert!(line("n0, n1, n2, n3 ", &output).ends_with("/web this set"));
    assert_eq!(output.status.code(), Some(1));
    let output = doctor(&servers, &[0, 1, 2, 3], &["--sets", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_form(&json, "sets");

    let output = doctor(&servers, &[0, 1, 2, 3], &["--forget"]);
    assert_eq!(
        output.status.code(),
        Some(64),
        "nobody can be asked: {}",
        stderr(&output)
    );
    drop(three);
    let output = doctor(&servers, &[0, 1, 2, 3], &["--forget", "--yes"]);
    assert_eq!(
        (
            output.status.code(),
            stdout(&output).matches("this set").count()
        ),
        (Some(0), 1),
        "{}",
        stdout(&output)
    );
    assert_eq!(
        doctor(&servers, &[0, 1, 2, 3], &["--sets"]).status.code(),
        Some(0)
    );
    Ok(())
}

#[test]
fn a_set_that_does_not_go_with_this_one_is_called_unsafe() -> TestResult {
    let servers = Servers::start(5)?;
    drop(program(&servers, &[0, 1, 2]));
    let output = doctor(&servers, &[0, 1, 2, 3, 4], &["--sets"]);
    assert!(stdout(&output).contains("NOT SAFE"), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(1));

    let output = doctor(&servers, &[0, 1, 2, 3, 4], &["--looks", "1", "--no-keys"]);
    let text = stdout(&output);
    assert!(
        text.contains("warning: n0 (") && text.contains("see quorlock doctor --sets"),
        "{text}"
    );

    servers[2].kill()?;
    let output = doctor(&servers, &[0, 1, 2], &["--forget", "--yes"]);
    assert_eq!(output.status.code(), Some(69), "{}", stdout(&output));
    Ok(())
}
