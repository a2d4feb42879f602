//! `quorlock status`.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;

use devnodes::{Servers, eventually};
use serde_json::Value;

use crate::support::*;

#[test]
fn status_shows_the_holder_per_node_without_its_secret() -> TestResult {
    let servers = Servers::start(3)?;
    let free = quorlock(&servers).args(["status", "report"]).output()?;
    assert!(free.status.success(), "{}", stderr(&free));
    assert!(
        stdout(&free).starts_with("report: free\n"),
        "{}",
        stdout(&free)
    );

    let locks = patient(&servers.urls()).owner_label("night").build()?;
    let guard = locks.mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);
    let held = quorlock(&servers).args(["status", "report"]).output()?;
    let (secret, text) = (
        String::from_utf8(servers[0].get("report").unwrap())?,
        stdout(&held),
    );
    assert!(
        text.starts_with("report: held by ") && text.matches("/night").count() == 4,
        "{text}"
    );
    assert!(!text.contains(&secret[..8]), "{text}");

    let json = quorlock(&servers)
        .args(["status", "--json", "report"])
        .output()?;
    let json: Value = serde_json::from_slice(&json.stdout)?;
    assert_eq!(
        (&json["quorlock"], &json["name"], &json["state"]),
        (&1.into(), &"report".into(), &"held".into())
    );
    assert_eq!(json["nodes"][2]["counter"], guard.fencing_token().get());
    assert!(
        json["nodes"][0]["left"].as_f64().is_some_and(|it| 0.0 < it),
        "{json}"
    );
    Ok(())
}

#[test]
fn status_run_and_release_agree_on_a_key_that_is_no_lock() -> TestResult {
    let servers = Servers::start(3)?;
    for server in servers.iter().skip(1) {
        server.command(&["HSET", "report", "a", "b"])?;
    }
    let words = "the key is in use for something that is not a lock";
    for (args, status) in [
        (&["status", "report"][..], 0),
        (&["run", "-n", "report", "--", "true"], 78),
        (&["release", "report", "--force", "--yes"], 1),
    ] {
        let output = quorlock(&servers).args(args).output()?;
        let said = stdout(&output) + &stderr(&output);
        assert!(
            output.status.code() == Some(status) && said.contains(words),
            "{args:?}: {:?}, {said}",
            output.status
        );
    }
    assert!(servers.iter().skip(1).all(|server| server.exists("report")));
    Ok(())
}

#[test]
fn missing_nodes_and_invalid_options_have_a_remedy() -> TestResult {
    let without = bare().args(["status", "report"]).output()?;
    assert_eq!(without.status.code(), Some(78));
    assert!(
        stderr(&without).contains("no servers: give --node"),
        "{}",
        stderr(&without)
    );
    assert_eq!(bare().args(["status"]).output()?.status.code(), Some(64));
    assert_eq!(bare().args(["no-such"]).output()?.status.code(), Some(64));
    let bad = bare()
        .args(["--node", "redis://user:hunter2@h:0", "status", "report"])
        .output()?;
    assert_eq!(bad.status.code(), Some(78));
    assert!(!stderr(&bad).contains("hunter2"), "{}", stderr(&bad));
    Ok(())
}

#[test]
fn a_majority_that_is_down_is_its_own_status() -> TestResult {
    let servers = Servers::start(3)?;
    servers[0].kill()?;
    let two = quorlock(&servers).args(["status", "report"]).output()?;
    assert!(two.status.success(), "{}", stdout(&two));
    servers[1].kill()?;
    let one = quorlock(&servers).args(["status", "report"]).output()?;
    assert_eq!(one.status.code(), Some(69), "{}", stdout(&one));
    assert!(stdout(&one).contains("cannot connect"), "{}", stdout(&one));
    Ok(())
}

#[test]
fn a_name_with_an_apostrophe_and_umlauts_is_shown_unescaped() -> TestResult {
    let servers = Servers::start(1)?;
    let name = "ann's Bücher";
    for (args, said) in [
        (&["status", name][..], format!("{name}: free\n")),
        (
            &["release", name, "--force", "--yes"],
            format!("{name}: not held\n"),
        ),
    ] {
        let output = quorlock(&servers).args(args).output()?;
        assert!(stdout(&output).starts_with(&said), "{}", stdout(&output));
    }
    let json = quorlock(&servers)
        .args(["status", "--json", name])
        .output()?;
    let json: Value = serde_json::from_slice(&json.stdout)?;
    assert_eq!(json["name"], name);
    Ok(())
}

#[test]
fn the_permits_of_a_semaphore_are_shown_slot_by_slot() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = patient(&servers.urls()).owner_label("night").build()?;
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
        &["status", "--json", "report"],
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
