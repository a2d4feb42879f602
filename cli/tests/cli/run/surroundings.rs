//! What a command is given: stdin, variables, and nothing secret.

use std::io::Write;
use std::process::Stdio;

use super::*;

#[test]
fn a_command_reads_stdin_and_one_that_is_closed_is_empty() -> TestResult {
    let servers = Servers::start(3)?;
    let mut run = Running::start(quorlock(&servers).args(["run", "report", "--", "cat"]));
    run.tell("one line");
    assert_eq!(run.line().as_deref(), Some("one line"));
    run.close_stdin();
    assert_eq!((run.line(), run.status()), (None, Some(0)));

    // Closed as a shell does it: there is no descriptor.
    let mut shell = std::process::Command::new("sh");
    shell.args([
        "-c",
        "exec \"$0\" \"$@\" <&-",
        env!("CARGO_BIN_EXE_quorlock"),
        "run",
        "report",
        "--",
        "cat",
    ]);
    let command = quorlock(&servers);
    shell.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let output = shell.stdin(Stdio::null()).output()?;
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), ""),
        "{}",
        stderr(&output)
    );
    Ok(())
}

#[test]
fn a_command_gets_its_lock_name_and_a_growing_token() -> TestResult {
    let servers = Servers::start(3)?;
    let mut last = 0;
    let line = "echo \"$QUORLOCK_NAME $QUORLOCK_FENCING_TOKEN\"; test -f \"$QUORLOCK_LEASE\" && ls -l \"$QUORLOCK_LEASE\"";
    for options in [
        &["a"][..],
        &["a"],
        &["a", "b"],
        &["-s", "a"],
        &["--permits", "2", "c"],
    ] {
        let output = quorlock(&servers)
            .arg("run")
            .args(options)
            .args(["-c", line])
            .output()?;
        let text = stdout(&output);
        let (first, file) = text.split_once('\n').ok_or("two lines")?;
        let names: Vec<_> = options
            .iter()
            .filter(|it| it.len() == 1 && **it != "2")
            .copied()
            .collect();
        let (name, token) = first.rsplit_once(' ').ok_or("two words")?;
        assert_eq!(name, names.join(" "));
        let token: u64 = token.parse()?;
        if !options[0].starts_with('-') {
            assert!(last < token, "{text}");
            last = token;
        }
        assert!(file.starts_with("-rw------- "), "{file}");
        let path = file.split_whitespace().last().ok_or("a path")?;
        assert!(
            path.ends_with(".lease") && !Path::new(path).exists(),
            "{path}"
        );
    }
    Ok(())
}

#[test]
fn readers_run_together_and_exclude_writers() -> TestResult {
    let servers = Servers::start(3)?;
    let mut reader =
        Running::start(quorlock(&servers).args(["run", "-s", "report", "-c", "echo in; cat"]));
    assert_eq!(reader.line().as_deref(), Some("in"));
    let run = |options: &[&str]| {
        quorlock(&servers)
            .arg("run")
            .args(options)
            .args(["report", "--", "true"])
            .status()
    };
    assert_eq!(run(&["-n", "-s"])?.code(), Some(0));
    assert_eq!(run(&["-n"])?.code(), Some(75));
    reader.close_stdin();
    assert_eq!(reader.status(), Some(0));
    assert_eq!(run(&["-n"])?.code(), Some(0));
    Ok(())
}

#[test]
fn no_command_line_or_child_environment_has_the_password() -> TestResult {
    const SECRET: &str = "open-sesame-4711";
    let servers = Servers::start(3)?;
    for server in &servers {
        server.command(&[
            "ACL",
            "SETUSER",
            "jobs",
            "on",
            &format!(">{SECRET}"),
            "~*",
            "&*",
            "+@all",
        ])?;
    }
    let mut file = tempfile::NamedTempFile::new()?;
    writeln!(file, "{SECRET}")?;
    let mut command = bare();
    for url in servers.urls() {
        command.args(["--node", &url]);
    }
    command
        .args([
            "run",
            "--no-quarantine",
            "--user",
            "jobs",
            "--password-file",
        ])
        .arg(file.path());
    command.args(["report", "-c", "env; echo end; cat"]);
    let mut run = Running::start(&mut command);
    let variables: Vec<_> = std::iter::from_fn(|| run.line())
        .take_while(|it| it != "end")
        .collect();
    let ours: Vec<_> = variables
        .iter()
        .filter(|it| it.starts_with("QUORLOCK_"))
        .collect();
    assert_eq!(ours.len(), 3, "{ours:?}");
    assert!(!variables.iter().any(|it| it.contains(SECRET)));

    let mut seen = 0;
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(line) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(!line.contains(SECRET), "{line}");
        seen +=
            usize::from(line.contains("__guard") || line.contains(&*file.path().to_string_lossy()));
    }
    assert!(seen >= 2, "quorlock and its guardian, at least");
    for (pid, line) in children(run.pid()) {
        let variables = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()))?;
        assert!(
            !String::from_utf8_lossy(&variables).contains(SECRET),
            "{line}"
        );
    }
    run.close_stdin();
    assert_eq!(run.status(), Some(0));
    Ok(())
}

#[test]
fn check_reports_the_lease_without_a_server() -> TestResult {
    let servers = Servers::start(3)?;
    let quorlock_itself = env!("CARGO_BIN_EXE_quorlock");
    let line = format!(
        "unset QUORLOCK_NODES; q={quorlock_itself}; $q check; echo $?; $q check --at-least 5s; echo $?; \
         $q check --at-least 1h 2>&1; echo $?; QUORLOCK_LEASE=/nowhere $q check 2>&1; echo $?"
    );
    let output = quorlock(&servers)
        .args(["run", "report", "-c", &line])
        .output()?;
    let text = stdout(&output);
    let lines: Vec<_> = text.lines().collect();
    let [now, soon, only, not_long, gone, nowhere] = lines[..] else {
        panic!("{lines:?}")
    };
    assert_eq!((now, soon, not_long, nowhere), ("0", "0", "79", "70"));
    assert!(
        only.starts_with("quorlock: the lock is held for ")
            && gone.starts_with("quorlock: cannot read /nowhere"),
        "{text}"
    );
    Ok(())
}
