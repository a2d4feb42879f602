//! How `quorlock run` ends.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::*;

#[test]
fn the_status_is_that_of_the_command() -> TestResult {
    let servers = Servers::start(3)?;
    for (line, status) in [
        ("true", 0),
        ("exit 1", 1),
        ("exit 75", 75),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        let output = quorlock(&servers)
            .args(["run", "report", "-c", line])
            .output()?;
        assert_eq!(
            output.status.code(),
            Some(status),
            "{line}: {}",
            stderr(&output)
        );
        assert_eq!(stderr(&output), "", "{line}");
        assert_eq!(
            servers.iter().filter(|it| it.exists("report")).count(),
            0,
            "{line}: released before the end"
        );
    }
    let output = quorlock(&servers)
        .args(["run", "report", "--", "echo", "-n", "x  y"])
        .output()?;
    assert_eq!(
        (stdout(&output).as_str(), output.status.code()),
        ("x  y", Some(0))
    );
    Ok(())
}

#[test]
fn a_failed_start_has_a_shell_status_and_releases_the_lock() -> TestResult {
    let servers = Servers::start(3)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("no-program");
    fs::write(&file, "nothing")?;
    fs::set_permissions(&file, Permissions::from_mode(0o644))?;
    for (command, status) in [("no-such-command", 127), (file.to_str().unwrap(), 126)] {
        let output = quorlock(&servers)
            .args(["run", "report", "--", command])
            .output()?;
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(
            stderr(&output).starts_with(&format!("quorlock: {command}: ")),
            "{}",
            stderr(&output)
        );
        assert_eq!(servers.holders("report"), 0);
    }
    Ok(())
}

#[test]
fn a_script_with_a_bad_first_line_fails_with_that_reason() -> TestResult {
    let servers = Servers::start(3)?;
    let folder = tempfile::tempdir()?;
    let program = |name: &str, text: &[u8]| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        file.display().to_string()
    };
    for (name, text, reason) in [
        (
            "windows",
            &b"#!/bin/sh\r\necho ran\r\n"[..],
            "Windows line ends",
        ),
        ("option", b"#!/opt/sh -e\r\necho ran\r\n", "/opt/sh"),
        (
            "none",
            b"#!/no/such/interpreter\necho ran\n",
            "/no/such/interpreter",
        ),
        ("spaces", b"#! /no/python3 -u\n", "/no/python3"),
        ("esc", b"#!/no/\x1b[31mred\n", "\\u{1b}"),
    ] {
        let path = program(name, text);
        for command in [path.as_str(), name] {
            for signals in ["--default-signal=PIPE", "--ignore-signal=PIPE"] {
                let mut run = quorlock(&servers);
                let folders = format!("/nowhere:{}:/usr/bin:/bin", folder.path().display());
                run.env("PATH", folders)
                    .args(["run", "report", "--", command]);
                let output = started_by(&["env", signals], &run).output()?;
                let text = stderr(&output);
                assert_eq!(output.status.code(), Some(127), "{command} {text}");
                assert!(
                    text.starts_with(&format!("quorlock: {command}: ")) && text.contains(reason),
                    "{command} {text}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn the_status_of_a_held_lock_can_be_chosen() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = others(&servers);
    let guard = locks.mutex("report").lock()?;
    for (options, status) in [
        (&["-n"][..], 75),
        (&["-w", "0"], 75),
        (&["-w", "0.3"], 75),
        (&["-n", "-E", "0"], 0),
        (&["-n", "-E", "1"], 1),
        (&["-n", "-E", "255"], 255),
    ] {
        let output = quorlock(&servers)
            .arg("run")
            .args(options)
            .args(["report", "--", "echo", "ran"])
            .output()?;
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(status), ""),
            "{options:?}"
        );
        assert!(
            stderr(&output).starts_with("quorlock: \"report\": held by "),
            "{}",
            stderr(&output)
        );
        let quiet = quorlock(&servers)
            .arg("run")
            .args(options)
            .args(["-q", "report", "--", "true"])
            .output()?;
        assert_eq!(
            (quiet.status.code(), stderr(&quiet).as_str()),
            (Some(status), ""),
            "{options:?}"
        );
    }
    drop(guard);
    Ok(())
}

#[test]
fn options_of_flock_mean_the_same() -> TestResult {
    let servers = Servers::start(3)?;
    let status = |args: &[&str]| {
        let mut command = quorlock(&servers);
        command
            .args(args)
            .args(["report", "--", "true"])
            .output()
            .unwrap()
            .status
            .code()
    };
    let guard = others(&servers).rw_lock("report").read()?;
    assert_eq!(status(&["run", "-s", "--nonblock"]), Some(0));
    assert_eq!(status(&["lock", "--exclusive", "--nonblock"]), Some(75));
    assert_eq!(status(&["lock", "-s", "-x", "--timeout", "0.1"]), Some(75));
    drop(guard);
    Ok(())
}

#[test]
fn options_that_make_no_sense_are_refused() -> TestResult {
    for wrong in [
        &["run", "report"][..],
        &["run", "--", "true"],
        &["run", "-E", "256", "report", "--", "true"],
        &["run", "-E", "-1", "report", "--", "true"],
        &["run", "report", "-c", "true", "--", "true"],
        &["run", "-q", "-v", "report", "--", "true"],
        &["run", "--ttl", "1s", "report", "--", "true"],
        &["run", "--kill-after", "14.1", "report", "--", "true"],
        &["run", "-s", "--permits", "2", "report", "--", "true"],
        &["run", "-x", "--permits", "0", "report", "--", "true"],
        &["check"],
    ] {
        let output = bare()
            .args(["--node", "redis://127.0.0.1:1"])
            .args(wrong)
            .output()?;
        assert_eq!(
            output.status.code(),
            Some(64),
            "{wrong:?}: {}",
            stderr(&output)
        );
    }
    assert_eq!(
        bare()
            .args(["run", "report", "--", "true"])
            .output()?
            .status
            .code(),
        Some(78)
    );
    for wrong in [
        &["run", "report", "ls"][..],
        &["lock", "report", "ls", "-l"],
    ] {
        let text = stderr(&bare().args(wrong).output()?);
        assert!(
            text.contains("put -- before the command: quorlock run NAME -- CMD"),
            "{text}"
        );
    }
    let text = stderr(
        &bare()
            .args(["run", "-q", "-v", "report", "-c", "true"])
            .output()?,
    );
    assert!(!text.contains("put --"), "{text}");
    Ok(())
}

#[test]
fn a_majority_that_is_down_and_a_wrong_password_have_statuses_of_their_own() -> TestResult {
    let servers = Servers::start_with(3, |it| it.password("sesame"))?;
    let folder = tempfile::tempdir()?;
    let (right, wrong) = (folder.path().join("right"), folder.path().join("wrong"));
    fs::write(&right, "sesame\n")?;
    fs::write(&wrong, "other\n")?;
    let urls: Vec<_> = servers
        .iter()
        .map(|it| format!("redis://{}", it.addr()))
        .collect();
    let run = |password: &Path| {
        let mut command = quorlock_at(&urls);
        command
            .args(["run", "-n", "report", "--password-file"])
            .arg(password)
            .args(["--", "echo", "ran"]);
        command.output().unwrap()
    };
    assert_eq!(
        (run(&right).status.code(), run(&wrong).status.code()),
        (Some(0), Some(77))
    );
    servers[0].kill()?;
    assert_eq!(run(&right).status.code(), Some(0));
    servers[1].kill()?;
    let down = run(&right);
    assert_eq!(
        (down.status.code(), stdout(&down).as_str()),
        (Some(69), ""),
        "{}",
        stderr(&down)
    );
    Ok(())
}

/// Where the system lets us have a read-only folder of our own.
#[test]
fn without_a_lease_folder_run_fails_before_its_wait() -> TestResult {
    let read_only = "mount -t tmpfs -o ro none /dev/shm && exec \"$0\" \"$@\"";
    let starter = [
        "unshare",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        read_only,
    ];
    if !started_by(&starter, &Command::new("true"))
        .status()
        .is_ok_and(|it| it.success())
    {
        return Ok(());
    }
    let servers = Servers::start(3)?;
    let locks = others(&servers);
    let _guard = locks.mutex("report").lock()?;
    let mut command = quorlock(&servers);
    command
        .args(["run", "report", "--", "echo", "ran"])
        .env("TMPDIR", "/nowhere");
    let mut command = started_by(&starter, &command);
    let mut run = Running::start(command.env_remove("XDG_RUNTIME_DIR"));
    assert_eq!((run.status(), run.line()), (Some(70), None));
    let said = run.stderr();
    assert!(said.contains("set TMPDIR"), "{said}");
    Ok(())
}

#[test]
fn a_full_disk_changes_no_status() -> TestResult {
    let servers = Servers::start(3)?;
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let run = |line: &str| {
        let mut command = quorlock(&servers);
        command
            .args(["run", "-v", "report", "-c", line])
            .stdout(full())
            .stderr(full());
        command.status().unwrap().code()
    };
    assert_eq!(run("exit 4"), Some(4));
    assert_ne!(
        run("echo lost || exit 5"),
        Some(0),
        "the command's own trouble"
    );
    assert_eq!(servers.holders("report"), 0);
    Ok(())
}
