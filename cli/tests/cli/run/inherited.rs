//! What a command gets from the starter of quorlock: ignored signals, variables of service managers, the shell.

use super::*;

/// The signals that a process ignores, as the bits in /proc.
const IGNORED: &str = "grep SigIgn /proc/self/status";

fn ignored(starter: &[&str], servers: &Servers) -> u64 {
    let mut command = quorlock(servers);
    command.args(["run", "report", "-c", IGNORED]);
    let output = started_by(starter, &command).output().unwrap();
    let text = stdout(&output);
    let bits = text
        .split_whitespace()
        .last()
        .unwrap_or_else(|| panic!("{}", stderr(&output)));
    u64::from_str_radix(bits, 16).unwrap()
}

#[test]
fn each_signal_that_the_starter_ignores_is_ignored_by_the_command() -> TestResult {
    let servers = Servers::start(3)?;
    let plain = ignored(&["env"], &servers);
    for (name, number) in [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("USR1", 10),
        ("USR2", 12),
        ("PIPE", 13),
        ("ALRM", 14),
        ("TERM", 15),
        ("TSTP", 20),
        ("TTIN", 21),
        ("TTOU", 22),
        ("XFSZ", 25),
        ("WINCH", 28),
    ] {
        let seen = ignored(&["env", &format!("--ignore-signal={name}")], &servers);
        assert_eq!(
            seen,
            plain | 1 << (number - 1),
            "{name}: {seen:x}, {plain:x}"
        );
    }
    assert_eq!(
        plain & 1 << 12,
        0,
        "PIPE ends programs unless the starter ignores it"
    );
    Ok(())
}

#[test]
fn an_ignored_sigpipe_changes_no_status_or_argument_of_a_command() -> TestResult {
    let servers = Servers::start(3)?;
    for (args, status, said) in [
        (&["--", "printf", "%s|", "a  b", "", "'"][..], 0, "a  b||'|"),
        (&["-c", "exit 3"], 3, ""),
        (&["--", "printenv", "a.b"], 0, "odd\n"),
        (&["--", "no-such-command"], 127, ""),
        (&["--", "/"], 126, ""),
        (&["-c", "echo $0 $QUORLOCK_NAME"], 0, "/bin/sh report\n"),
    ] {
        let mut command = quorlock(&servers);
        command.env("a.b", "odd");
        command.args(["run", "report"]).args(args);
        let output = started_by(&["env", "--ignore-signal=PIPE"], &command).output()?;
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(status), said),
            "{args:?} {}",
            stderr(&output)
        );
    }
    Ok(())
}

/// As for any program that ignores it: an error of the write.
#[test]
fn a_closed_stdout_is_an_error_for_a_hold_that_ignores_sigpipe() -> TestResult {
    let servers = Servers::start(3)?;
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let mut command = quorlock(&servers);
    command.args(["hold", "--until-signal", "report"]);
    let output = started_by(&["env", "--ignore-signal=PIPE"], &command)
        .stdout(writer)
        .output()?;
    assert!(output.status.code().is_some(), "{:?}", output.status);
    assert!(
        stderr(&output).starts_with("quorlock: stdout: "),
        "{}",
        stderr(&output)
    );
    Ok(())
}

#[test]
fn process_ids_in_service_manager_variables_become_the_commands() -> TestResult {
    let servers = Servers::start(3)?;
    let starter = "LISTEN_PID=$$ WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=$$ OTHER_PID=$$; \
                   export LISTEN_PID WATCHDOG_PID SYSTEMD_EXEC_PID OTHER_PID; exec \"$0\" \"$@\"";
    let line = "echo $$ $LISTEN_PID $WATCHDOG_PID $SYSTEMD_EXEC_PID $OTHER_PID $QUORLOCK_NAME";
    let mut command = quorlock(&servers);
    command.args(["run", "report", "-c", line]);
    for signals in ["--default-signal=PIPE", "--ignore-signal=PIPE"] {
        let output = started_by(&["env", signals, "sh", "-c", starter], &command).output()?;
        let text = stdout(&output);
        let [own, listen, watchdog, exec, other, name] =
            text.split_whitespace().collect::<Vec<_>>()[..]
        else {
            panic!("{text}{}", stderr(&output))
        };
        assert_eq!([listen, watchdog, exec], [own; 3], "{signals}");
        assert!(other != own && name == "report", "{text}");
        // Those of another process are not for us.
        let mut of_another = started_by(&["env", signals], &command);
        let output = of_another
            .env("LISTEN_PID", "1")
            .env("WATCHDOG_PID", "")
            .output()?;
        let words: Vec<_> = stdout(&output)
            .split_whitespace()
            .skip(1)
            .map(str::to_owned)
            .collect();
        assert_eq!(words, ["1", "report"], "{signals}");
    }
    Ok(())
}

#[test]
fn an_unusable_shell_variable_is_replaced_by_the_system_shell() -> TestResult {
    let servers = Servers::start(3)?;
    for shell in [
        "",
        "/usr/sbin/nologin",
        "/sbin/nologin",
        "/bin/false",
        "/usr/bin/true",
        "/bin/sync",
        "/nonexistent/bash",
        "/etc",
        "sh",
    ] {
        let mut command = quorlock(&servers);
        command.env("SHELL", shell);
        let output = command
            .args(["run", "report", "-c", "echo \"$0\""])
            .output()?;
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(0), "/bin/sh\n"),
            "{shell}: {}",
            stderr(&output)
        );
    }
    // A shell of the user's own is used.
    let folder = tempfile::tempdir()?;
    let own = folder.path().join("mysh");
    std::os::unix::fs::symlink("/bin/sh", &own)?;
    let mut command = quorlock(&servers);
    command.env("SHELL", &own);
    let output = command
        .args(["run", "report", "-c", "echo \"$0\""])
        .output()?;
    assert_eq!(stdout(&output).trim_end(), own.display().to_string());
    Ok(())
}
