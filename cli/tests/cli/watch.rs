//! `quorlock status --watch`, and of semaphores.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;

use devnodes::{Servers, eventually};
use quorlock::LockManager;
use serde_json::Value;

use crate::support::*;

fn locks(servers: &Servers) -> LockManager {
    patient(&servers.urls())
        .owner_label("night")
        .build()
        .unwrap()
}

#[test]
fn programs_get_an_object_in_each_line_for_each_name_and_each_look() -> TestResult {
    let servers = Servers::start(3)?;
    let args = [
        "status", "--watch", "--every", "50ms", "--json", "report", "deploy",
    ];
    let watch = Running::start(quorlock(&servers).args(args));
    let state = |name: &str| {
        let line: Value = serde_json::from_str(&watch.line().unwrap()).unwrap();
        assert_eq!(
            (&line["quorlock"], &line["name"]),
            (&1.into(), &name.into())
        );
        line["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (state("report"), state("deploy")),
        ("free".to_owned(), "free".to_owned())
    );
    let locks = locks(&servers);
    let guard = locks.mutex("deploy").lock()?;
    eventually("it is held", || {
        (state("report"), state("deploy")) == ("free".to_owned(), "held".to_owned())
    });
    guard.release()?;
    eventually("it is free again", || {
        (state("report"), state("deploy")) == ("free".to_owned(), "free".to_owned())
    });
    Ok(())
}

#[test]
fn a_terminal_is_redrawn_and_nothing_else_is() -> TestResult {
    let servers = Servers::start(3)?;
    let args = ["status", "--watch", "--every", "50ms", "report"];
    let terminal = Terminal::start(quorlock(&servers).args(args));
    terminal.wait_for("report: free");
    let guard = locks(&servers).mutex("report").lock()?;
    terminal.wait_for("report: held by ");
    assert!(
        terminal.said().matches("\x1b[H").count() >= 2,
        "{:?}",
        terminal.said()
    );
    drop(guard);

    let watch = Running::start(quorlock(&servers).args(args));
    for _ in 0..8 {
        assert!(!watch.line().unwrap().contains('\x1b'));
    }
    Ok(())
}

#[test]
fn the_permits_of_a_semaphore_are_shown_slot_by_slot() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = locks(&servers);
    let permit = locks.semaphore("mail", 3).acquire()?;
    let key = format!("quorlock:slot-{}:mail", permit.slot());
    eventually("it is on all nodes", || {
        servers.iter().all(|it| it.exists(&key))
    });

    let json = quorlock(&servers)
        .args(["status", "--json", "--permits", "3", "mail"])
        .output()?;
    let json: Value = serde_json::from_slice(&json.stdout)?;
    assert_eq!(
        (&json["quorlock"], &json["permits"], &json["held"]),
        (&1.into(), &3.into(), &1.into())
    );
    let slot = &json["slots"][permit.slot()];
    assert_eq!(
        (&slot["slot"], &slot["state"]),
        (&permit.slot().into(), &"held".into())
    );
    assert!(
        slot["holder"]
            .as_str()
            .is_some_and(|it| it.ends_with("/night")),
        "{slot}"
    );

    servers[2].kill()?;
    let text = quorlock(&servers)
        .args(["status", "--permits", "3", "mail"])
        .output()?;
    assert_eq!(text.status.code(), Some(0), "{}", stderr(&text));
    let text = stdout(&text);
    assert!(text.starts_with("mail: 1 of 3 permits held\n"), "{text}");
    assert!(
        text.contains("/night") && text.matches("free").count() == 2,
        "{text}"
    );
    assert!(text.contains("cannot connect"), "{text}");
    let wrong = quorlock(&servers)
        .args(["status", "--permits", "0", "mail"])
        .output()?;
    assert_eq!(wrong.status.code(), Some(64));
    Ok(())
}

#[test]
fn a_full_disk_is_a_status_and_a_closed_pipe_a_silent_end() -> TestResult {
    let servers = Servers::start(3)?;
    for args in [
        &["status", "report"][..],
        &["status", "--json", "--watch", "report"],
        &["doctor", "--looks", "1"],
    ] {
        let full = File::options().write(true).open("/dev/full")?;
        let (reader, closed) = std::io::pipe()?;
        drop(reader);
        let output = quorlock(&servers).args(args).stdout(full).output()?;
        assert_eq!(output.status.code(), Some(70), "{args:?}");
        assert!(
            stderr(&output).contains("stdout: ") && !stderr(&output).contains("panicked"),
            "{}",
            stderr(&output)
        );
        let output = quorlock(&servers).args(args).stdout(closed).output()?;
        assert_eq!(
            (output.status.signal(), stderr(&output).as_str()),
            (Some(13), ""),
            "{args:?}"
        );
    }
    Ok(())
}
