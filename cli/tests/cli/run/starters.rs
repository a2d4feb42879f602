//! What whoever starts `quorlock run` has left behind: signals, folders, locks, limits.

use super::*;

/// Neither survives in programs that start processes themselves, but both survive exec.
#[test]
fn a_command_ends_despite_an_inherited_blocked_term_signal() -> TestResult {
    let servers = Servers::start(3)?;
    for signals in ["--ignore-signal=CHLD", "--block-signal=CHLD"] {
        let command = ["run", "report", "-c", "exit 3"];
        let mut run = Running::start(&mut started_by(
            &["env", signals],
            quorlock(&servers).args(command),
        ));
        assert_eq!(run.status(), Some(3), "{signals}");
    }
    Ok(())
}

#[test]
fn signals_that_the_starter_blocks_reach_the_command() -> TestResult {
    let servers = Servers::start(3)?;
    let mut run = Running::start(&mut started_by(
        &["env", "--block-signal=TERM"],
        quorlock(&servers).args(["run", "report", "-c", "echo ready; exec sleep 1000"]),
    ));
    assert_eq!(run.line().as_deref(), Some("ready"));
    run.signal(Signal::TERM);
    assert_eq!(run.status(), Some(143));
    let mut hold = Running::start(&mut started_by(
        &["env", "--block-signal=TERM"],
        quorlock(&servers).args(["hold", "report"]),
    ));
    assert!(hold.line().is_some_and(|it| it.starts_with("held ")));
    hold.signal(Signal::TERM);
    assert_eq!(hold.status(), Some(0));
    Ok(())
}

#[test]
fn the_file_of_a_lease_is_in_the_first_writable_folder_and_outlives_a_logout() -> TestResult {
    let servers = Servers::start(3)?;
    let (temp, runtime) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let (temp, runtime) = (temp.path(), runtime.path().join("1000"));
    let line = format!(
        "dirname \"$QUORLOCK_LEASE\"; rm -rf \"$XDG_RUNTIME_DIR\"; {} check; echo $?",
        env!("CARGO_BIN_EXE_quorlock")
    );
    let no_folder = Path::new("/proc/none");
    for (temporary, of_user, expected) in [
        (temp, runtime.as_path(), temp),
        (temp, no_folder, temp),
        (Path::new("."), no_folder, Path::new("/dev/shm")),
        (no_folder, no_folder, Path::new("/dev/shm")),
        (no_folder, temp, temp),
    ] {
        fs::create_dir_all(&runtime)?;
        let mut command = quorlock(&servers);
        command
            .env("TMPDIR", temporary)
            .env("XDG_RUNTIME_DIR", of_user);
        let output = command.args(["run", "report", "-c", &line]).output()?;
        // What was removed by the command, was removed with the file.
        let status = if expected == of_user { 70 } else { 0 };
        assert_eq!(
            stdout(&output),
            format!("{}\n{status}\n", expected.display()),
            "{temporary:?} {of_user:?} {}",
            stderr(&output)
        );
    }
    Ok(())
}

#[test]
fn check_names_a_file_that_it_cannot_read_and_calls_no_lock_lost() -> TestResult {
    let folder = tempfile::tempdir()?;
    for (lease, status, said) in [
        (folder.path().join("gone/x.lease"), 70, "cannot read "),
        (folder.path().to_owned(), 70, "cannot read "),
        (folder.path().join("x.lease"), 70, "cannot read "),
    ] {
        let output = bare().arg("check").env("QUORLOCK_LEASE", &lease).output()?;
        assert_eq!(output.status.code(), Some(status), "{lease:?}");
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
    Ok(())
}

/// quorlock was killed before it had started the command.
#[test]
fn a_guardian_that_was_given_no_command_removes_the_file() -> TestResult {
    let lease = tempfile::NamedTempFile::new()?;
    let output = bare().arg("__guard").arg(lease.path()).output()?;
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(0), "")
    );
    assert!(!lease.path().exists());
    Ok(())
}

/// It would wait for the end of the command that it is part of.
#[test]
fn a_command_that_takes_the_lock_that_it_runs_under_fails_at_once_with_the_chain() -> TestResult {
    let servers = Servers::start(3)?;
    let quorlock_itself = env!("CARGO_BIN_EXE_quorlock");
    for (outer, inner, chain) in [
        ("run a", "run -w 60 a -- echo in", "a > a"),
        ("run a b", "run -n b -- echo in", "a > b > b"),
        ("run a", "hold -w 60 a", "a > a"),
        ("run -s a", "run -w 60 a -- echo in", "a > a"),
        ("run a", "run -w 60 -s a -- echo in", "a > a"),
        ("run a", "run b -- $q run -w 60 a -- echo in", "a > b > a"),
        ("run a", "run b -- echo in", ""),
        ("run -s a", "run -s a -- echo in", ""),
        ("run a", "run --prefix x a -- echo in", ""),
        ("run a", "run --permits 1 a -- echo in", ""),
        // As one that a job has left to a daemon: the job has ended.
        (
            "run a",
            "run b -- sh -c 'sed s/ns.*/ns\\ 1/ $QUORLOCK_LEASE >$f; QUORLOCK_LEASE=$f $q run -n b -- echo in'",
            "",
        ),
    ] {
        let file = tempfile::NamedTempFile::new()?;
        let mut command = quorlock(&servers);
        command.env("q", quorlock_itself).env("f", file.path());
        let line = format!("$q {inner}");
        let output = command
            .args(outer.split(' '))
            .args(["-c", &line])
            .output()?;
        let expected = if chain.is_empty() { 0 } else { 78 };
        let is_held = chain.is_empty() && inner.contains("$f");
        assert_eq!(
            output.status.code(),
            Some(if is_held { 75 } else { expected }),
            "{outer}, {inner}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(chain),
            "{inner}: {}",
            stderr(&output)
        );
    }
    Ok(())
}

#[test]
fn a_lock_without_a_name_is_refused() -> TestResult {
    let servers = Servers::start(3)?;
    for command in [
        &["run", "-n", "", "--", "true"][..],
        &["run", "-n", "a", "", "--", "true"],
        &["hold", "--until-signal", ""],
    ] {
        let output = quorlock(&servers).args(command).output()?;
        assert_eq!(output.status.code(), Some(64), "{command:?}");
        assert!(stderr(&output).contains("a lock name is empty"));
    }
    Ok(())
}

#[test]
fn exhausted_threads_or_files_are_no_configuration_error() -> TestResult {
    let servers = Servers::start(3)?;
    let shell = ["sh", "-c", "ulimit -n 4; exec \"$0\" \"$@\""];
    let output = started_by(&shell, quorlock(&servers).args(["status", "report"])).output()?;
    assert_eq!(output.status.code(), Some(70), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot start the node threads"));
    Ok(())
}
