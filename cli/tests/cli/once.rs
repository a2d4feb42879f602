//! `quorlock once`.

use std::process::{Command, Output};

use devnodes::{Servers, eventually};

use crate::support::*;

fn once(servers: &Servers, args: &[&str]) -> Command {
    let mut command = quorlock(servers);
    command.args(["once", "--every", "1d", "report"]).args(args);
    command
}

fn status(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn m1_a_command_runs_once_per_period_and_status_shows_the_run() -> TestResult {
    let servers = Servers::start(3)?;
    let shown = |json: bool| {
        let json = json.then_some("--json");
        let mut command = quorlock(&servers);
        command
            .args(["status", "--once", "report"])
            .args(json)
            .output()
    };
    assert_eq!(stdout(&shown(false)?), "report: no run is recorded\n");
    let script = "echo $QUORLOCK_NAME $QUORLOCK_FENCING_TOKEN $QUORLOCK_PERIOD; quorlock check";
    let ran = once(
        &servers,
        &[
            "--",
            "sh",
            "-c",
            &script.replace("quorlock", env!("CARGO_BIN_EXE_quorlock")),
        ],
    )
    .output()?;
    assert_eq!(status(&ran), Some(0), "{}", stderr(&ran));
    let words = stdout(&ran);
    let words: Vec<_> = words.split_whitespace().collect();
    assert_eq!((words[0], words.len()), ("report", 3));

    let again = once(&servers, &["-v", "--", "echo", "again"]).output()?;
    assert_eq!((status(&again), stdout(&again)), (Some(0), String::new()));
    assert!(
        stderr(&again).contains("report: done by "),
        "{}",
        stderr(&again)
    );
    let text = stdout(&shown(false)?);
    assert!(
        text.starts_with("report: done by ") && text.contains(words[1]),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_slice(&shown(true)?.stdout)?;
    assert_eq!(json["run"]["state"], "done");
    assert_eq!(json["run"]["period"].to_string(), words[2]);
    assert_eq!(json["run"]["token"].to_string(), words[1]);
    Ok(())
}

#[test]
fn m1_a_command_that_fails_is_run_by_the_next_call_unless_failures_count() -> TestResult {
    let servers = Servers::start(3)?;
    for _ in 0..2 {
        let failed = once(&servers, &["--", "sh", "-c", "exit 7"]).output()?;
        assert_eq!((status(&failed), stderr(&failed)), (Some(7), String::new()));
    }
    let counted = once(&servers, &["--failures-count", "--", "sh", "-c", "exit 8"]).output()?;
    assert_eq!(status(&counted), Some(8));
    let found = once(&servers, &["-v", "--", "echo", "x"]).output()?;
    assert_eq!((status(&found), stdout(&found)), (Some(0), String::new()));
    assert!(stderr(&found).contains("failed by "), "{}", stderr(&found));
    Ok(())
}

#[test]
fn m4_a_call_beside_a_run_reports_it_or_waits() -> TestResult {
    let servers = Servers::start(3)?;
    let folder = tempfile::tempdir()?;
    let gate = folder.path().join("gate");
    let script = format!("until [ -e {} ]; do sleep 0.02; done", gate.display());
    let mut first = once(&servers, &["--", "sh", "-c", &script]).spawn()?;
    eventually("it runs", || servers.holders("report") == 3);
    let beside = once(&servers, &["--", "echo", "x"]).output()?;
    assert_eq!(status(&beside), Some(75));
    assert!(stderr(&beside).contains(" runs it"), "{}", stderr(&beside));
    let quiet = once(&servers, &["-q", "-E", "0", "--", "echo", "x"]).output()?;
    assert_eq!((status(&quiet), stderr(&quiet)), (Some(0), String::new()));
    let waits = once(&servers, &["-w", "60", "--", "echo", "x"])
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    eventually("it waits", || servers[0].exists("quorlock:waiting:report"));
    std::fs::write(&gate, "")?;
    assert!(first.wait()?.success());
    let waited = waits.wait_with_output()?;
    assert_eq!((status(&waited), stdout(&waited)), (Some(0), String::new()));
    Ok(())
}

#[test]
fn m5_an_aborted_command_at_most_once_needs_a_person() -> TestResult {
    let servers = Servers::start(3)?;
    let broken = once(&servers, &["--at-most-once", "--", "false"]).output()?;
    assert_eq!(status(&broken), Some(1));
    let left = once(&servers, &["--", "echo", "x"]).output()?;
    assert_eq!((status(&left), stdout(&left)), (Some(76), String::new()));
    assert!(stderr(&left).contains("broken off"), "{}", stderr(&left));
    let again = once(&servers, &["--at-most-once", "--again", "--", "echo", "x"]).output()?;
    assert_eq!(
        (status(&again), stdout(&again)),
        (Some(0), "x\n".to_owned())
    );
    Ok(())
}

#[test]
fn m3_a_success_that_no_majority_records_has_a_status_of_its_own() -> TestResult {
    let servers = Servers::start(3)?;
    // The servers go away with the command's last step.
    let pids: Vec<_> = servers
        .iter()
        .take(2)
        .map(|it| it.pid().to_string())
        .collect();
    let script = format!("kill -KILL {}", pids.join(" "));
    let mut command = once(&servers, &["--", "sh", "-c", &script]);
    let command = command.envs([("QUORLOCK_TTL", "3"), ("QUORLOCK_RESPONSE_TIMEOUT", "0.3")]);
    let ended = command.output()?;
    assert_eq!(status(&ended), Some(73), "{}", stderr(&ended));
    assert!(
        stderr(&ended).contains("no majority has recorded it"),
        "{}",
        stderr(&ended)
    );
    let none = once(&servers, &["--", "echo", "x"]).output()?;
    assert_eq!((status(&none), stdout(&none)), (Some(69), String::new()));
    Ok(())
}

#[test]
fn a_job_needs_one_name_and_one_kind_of_period() -> TestResult {
    let servers = Servers::start(3)?;
    let refused = |args: &[&str], expected: i32| {
        let output = quorlock(&servers).arg("once").args(args).output().unwrap();
        assert_eq!(
            status(&output),
            Some(expected),
            "{args:?}: {}",
            stderr(&output)
        );
    };
    for args in [
        &["report", "--", "true"][..],
        &["--every", "1d", "--keep", "1h", "report", "--", "true"],
        &["--every", "1d", "a", "b", "--", "true"],
        &["--every", "1d", "--shared", "a", "--", "true"],
        &["--every", "1d", "--permits", "3", "a", "--", "true"],
        &["--every", "0", "a", "--", "true"],
        &["--every", "1d", "--at", "24:00", "a", "--", "true"],
        &["--every", "1d", "a"],
    ] {
        refused(args, 64);
    }
    refused(&["--fire-time", "1767225600", "a", "--", "true"], 0);
    refused(&["--every", "1d", "a", "--", "true"], 78);
    refused(&["--every", "1d", "--at", "03:00", "b", "--", "true"], 0);
    refused(&["--keep", "1h", "c", "--", "true"], 0);
    Ok(())
}
