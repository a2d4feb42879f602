//! The file of a lease in folders that are full, limited or emptied.

use std::process::{Command, Output};

use super::*;

/// `quorlock check` as a line of a shell, and its status.
fn check() -> String {
    format!("{} check; echo $?; ", env!("CARGO_BIN_EXE_quorlock"))
}

fn run_in(servers: &Servers, temporary: &Path, line: &str) -> Command {
    let mut command = quorlock(servers);
    command
        .env("TMPDIR", temporary)
        .env_remove("XDG_RUNTIME_DIR")
        .args(["run", "report", "-c", line]);
    command
}

/// The command in a mount name space of its own, with 64 KiB of memory at $TMPDIR; none where the system forbids that.
fn in_small_folder(before: &str, command: &Command) -> Option<Output> {
    let allowed = Command::new("unshare").args(["-rm", "true"]).output();
    if !allowed.is_ok_and(|it| it.status.success()) {
        return None;
    }
    let line = format!(
        "mount -t tmpfs -o size=64k tmpfs \"$TMPDIR\" || exit 99; {before}; exec \"$0\" \"$@\""
    );
    let output = started_by(&["unshare", "-rm", "sh", "-c", &line], command)
        .output()
        .unwrap();
    (output.status.code() != Some(99)).then_some(output)
}

const FILL: &str = "cat /dev/zero >\"$TMPDIR/fill\" 2>/dev/null";

#[test]
fn the_file_of_a_lease_is_elsewhere_where_its_folder_is_full() -> TestResult {
    let servers = Servers::start(3)?;
    let folder = tempfile::tempdir()?;
    let line = format!("dirname \"$QUORLOCK_LEASE\"; {}", check());
    let command = run_in(&servers, folder.path(), &line);
    let Some(output) = in_small_folder(FILL, &command) else {
        return Ok(());
    };
    assert_eq!(stdout(&output), "/dev/shm\n0\n", "{}", stderr(&output));
    Ok(())
}

#[test]
fn a_folder_that_the_command_fills_makes_no_held_lock_lost() -> TestResult {
    let servers = Servers::start(3)?;
    let folder = tempfile::tempdir()?;
    // Longer than the lock would last without an extension, less the time for TERM.
    let line = format!("{FILL}; {0} sleep 5; {0}", check());
    let mut command = run_in(&servers, folder.path(), &line);
    command
        .env("QUORLOCK_TTL", "4")
        .env("QUORLOCK_RESPONSE_TIMEOUT", "900ms");
    let Some(output) = in_small_folder("true", &command) else {
        return Ok(());
    };
    assert_eq!(
        (stdout(&output).as_str(), output.status.code()),
        ("0\n0\n", Some(0)),
        "{}",
        stderr(&output)
    );
    Ok(())
}

#[test]
fn check_fails_without_a_readable_lease_file() -> TestResult {
    let servers = Servers::start(3)?;
    let folder = tempfile::tempdir()?;
    for spoil in [
        "rm -rf \"$TMPDIR\"/*",
        "rm -rf \"$TMPDIR\"",
        ": >\"$QUORLOCK_LEASE\"",
        "echo nonsense >\"$QUORLOCK_LEASE\"",
    ] {
        fs::create_dir_all(folder.path())?;
        let line = format!("{spoil}; {}", check());
        let output = run_in(&servers, folder.path(), &line).output()?;
        assert_eq!(
            (stdout(&output).as_str(), output.status.code()),
            ("70\n", Some(0)),
            "{spoil}: {}",
            stderr(&output)
        );
        assert!(stderr(&output).contains(".lease"), "{}", stderr(&output));
    }
    fs::create_dir_all(folder.path())?;
    Ok(())
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_before_the_wait_and_no_signal() -> TestResult {
    let servers = Servers::start(3)?;
    let _held = others(&servers).mutex("report").lock()?;
    let folder = tempfile::tempdir()?;
    let limited = |blocks: &str, command: &Command| {
        let line = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
        started_by(&["sh", "-c", &line], command).output().unwrap()
    };
    let output = limited("0", &run_in(&servers, folder.path(), "echo ran"));
    let text = stderr(&output);
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(70), ""),
        "{text}"
    );
    assert!(text.contains("TMPDIR"), "{text}");
    assert_eq!(fs::read_dir(folder.path())?.count(), 0, "nothing is left");

    let mut command = quorlock(&servers);
    command.env("TMPDIR", folder.path());
    command.args(["run", "deploy", "-c", &check()]);
    let output = limited("8", &command);
    assert_eq!(stdout(&output), "0\n", "{}", stderr(&output));
    // The command has the limit, and ends by it as it would without us.
    command = quorlock(&servers);
    command.args(["run", "deploy", "-c"]);
    command.arg(format!(
        "exec head -c 9999 /dev/zero >{}/x",
        folder.path().display()
    ));
    assert_eq!(limited("8", &command).status.code(), Some(128 + 25));
    Ok(())
}

/// The helper finds no file if quorlock has failed before it could open the gate.
#[test]
fn a_start_helper_without_a_lease_file_ends_silently() -> TestResult {
    let folder = tempfile::tempdir()?;
    let output = bare()
        .args(["__start", "true"])
        .env("QUORLOCK_LEASE", folder.path().join("x.lease"))
        .output()?;
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(79), "")
    );
    Ok(())
}
