//! Where the command has its settings from: options, variables, files.

use std::fs::{self, File};
use std::process::Command;

use devnodes::{Server, Servers, eventually};
use serde_json::Value;

use crate::support::*;

/// The addresses of the servers that a command means. Nobody is there.
pub(crate) fn addresses(command: &mut Command) -> Vec<String> {
    let output = command
        .args(["status", "--json", "report"])
        .output()
        .unwrap();
    let json: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    json["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["address"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn servers_come_from_options_then_from_a_file_of_them_then_from_a_variable() -> TestResult {
    let folder = tempfile::tempdir()?;
    let nodes = folder.path().join("nodes");
    fs::write(
        &nodes,
        "# ours\n\n redis://127.0.0.1:4\nredis://127.0.0.1:5\n",
    )?;
    let variable = || {
        let mut command = bare();
        command.env("QUORLOCK_NODES", "redis://127.0.0.1:2,redis://127.0.0.1:3");
        command
    };
    assert_eq!(addresses(&mut variable()), ["127.0.0.1:2", "127.0.0.1:3"]);
    let file = || {
        let mut command = variable();
        command.env("QUORLOCK_NODES_FILE", &nodes);
        command
    };
    assert_eq!(addresses(&mut file()), ["127.0.0.1:4", "127.0.0.1:5"]);
    let found = addresses(file().args(["--node", "redis://127.0.0.1:1"]));
    assert_eq!(found, ["127.0.0.1:1"]);
    Ok(())
}

#[test]
fn addresses_with_tls_need_no_feature() {
    assert_eq!(
        addresses(bare().args(["--node", "rediss://127.0.0.1:1"])),
        ["127.0.0.1:1"]
    );
}

#[test]
fn variables_have_what_options_have_and_options_override_them() -> TestResult {
    let server = Server::builder().password("open-sesame").start()?;
    let folder = tempfile::tempdir()?;
    let password = folder.path().join("password");
    fs::write(&password, "open-sesame\n")?;
    let url = format!("redis://{}", server.addr());
    let hold = |options: &[&str]| {
        let mut command = bare();
        for (name, value) in [
            ("NODES", &*url),
            ("PASSWORD_FILE", password.to_str().unwrap()),
            ("PREFIX", "app:"),
            ("TTL", "40"),
            ("MAX_TTL", "1h"),
            ("RESPONSE_TIMEOUT", "10s"),
            ("CONNECT_TIMEOUT", "20s"),
            ("NO_QUARANTINE", "yes"),
        ] {
            command.env(format!("QUORLOCK_{name}"), value);
        }
        command.args(["hold", "--json", "report"]).args(options);
        command
    };
    let left = |hold: &Running| -> f64 {
        let held: Value = serde_json::from_str(&hold.line().unwrap()).unwrap();
        held["left"].as_f64().unwrap()
    };
    let running = Running::start(&mut hold(&[]));
    assert!(left(&running) < 40.0);
    eventually("it has the prefix", || server.exists("app:report"));
    let running = Running::start(&mut hold(&["--prefix", "other:", "--ttl", "600"]));
    assert!(40.0 < left(&running));
    eventually("it has the other prefix", || server.exists("other:report"));

    fs::write(&password, "hunter2\n")?;
    let output = hold(&["-n", "--until-signal"]).output()?;
    assert_eq!(output.status.code(), Some(77), "{}", stderr(&output));
    fs::remove_file(&password)?;
    let output = hold(&["-n"]).output()?;
    let text = stderr(&output);
    assert!(
        output.status.code() == Some(78) && text.contains("password: "),
        "{text}"
    );
    Ok(())
}

#[test]
fn a_password_among_the_options_is_warned_of_and_not_repeated() -> TestResult {
    let server = Server::builder().password("hunter2").start()?;
    let url = format!("redis://:hunter2@{}", server.addr());
    let status = |command: &mut Command| {
        let output = command
            .args(["status", "report"])
            .env("QUORLOCK_RESPONSE_TIMEOUT", "5")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let text = status(bare().args(["--node", &url]));
    assert!(
        text.contains("all users of this machine can see") && !text.contains("hunter2"),
        "{text}"
    );
    assert_eq!(status(bare().env("QUORLOCK_NODES", &url)), "");
    let without = format!("redis://{}", server.addr());
    assert_eq!(
        status(
            bare()
                .args(["--node", &without])
                .env("QUORLOCK_PASSWORD", "hunter2")
        ),
        ""
    );
    Ok(())
}

#[test]
fn a_full_disk_is_a_status_of_every_printing_command() -> TestResult {
    let servers = Servers::start(1)?;
    let commands: [&[&str]; 4] = [
        &["ls"],
        &["vouch", "--yes"],
        &["release", "--force", "--yes", "report"],
        &["completions", "bash"],
    ];
    for args in commands {
        let full = File::options().write(true).open("/dev/full")?;
        let output = quorlock(&servers).args(args).stdout(full).output()?;
        assert_eq!(output.status.code(), Some(70), "{args:?}");
        assert!(
            stderr(&output).contains("stdout: "),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    Ok(())
}

#[test]
fn settings_name_the_place_of_a_wrong_server() -> TestResult {
    let folder = tempfile::tempdir()?;
    let nodes = folder.path().join("nodes");
    fs::write(&nodes, "# ours\nredis://127.0.0.1:1\n\n127.0.0.1:2\n")?;
    let refused = |command: &mut Command| {
        let output = command.args(["status", "report"]).output().unwrap();
        assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
        stderr(&output)
    };
    let text = refused(bare().arg("--nodes-file").arg(&nodes));
    assert!(
        text.starts_with(&format!(
            "quorlock: line 4 of {}: not a URL",
            nodes.display()
        )),
        "{text}"
    );
    let twice = "redis://127.0.0.1:1 redis://127.0.0.1:1";
    let text = refused(bare().env("QUORLOCK_NODES", twice));
    let both = "server 1 of QUORLOCK_NODES and server 2 of QUORLOCK_NODES are the same server";
    assert!(text.contains(both), "{text}");
    let text = refused(bare().env("QUORLOCK_NODES", "redis://127.0.0.1:1 http://a"));
    assert!(
        text.starts_with("quorlock: server 2 of QUORLOCK_NODES: "),
        "{text}"
    );
    let text = refused(bare().args(["--node", "redis://127.0.0.1:99999", "--ttl", "5ms"]));
    assert!(
        text.starts_with("quorlock: server 1 of --node: ") && text.contains("; "),
        "{text}"
    );
    assert!(
        !text.contains("lock manager") && !text.contains("Builder"),
        "{text}"
    );
    Ok(())
}

#[test]
fn colour_is_for_terminals_without_no_color() -> TestResult {
    let servers = Servers::start(1)?;
    let doctor = || {
        let mut command = quorlock(&servers);
        command
            .args(["doctor", "--looks", "1"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        command
    };
    let said = |command: &mut Command| {
        let mut terminal = Terminal::start(command);
        assert_eq!(terminal.status(), Some(1), "{}", terminal.said());
        terminal.wait_for("These servers are fit");
        terminal.said()
    };
    let coloured = said(&mut doctor());
    assert!(
        coloured.contains("\x1b[1m NODE ") && coloured.contains("\x1b[33mwarning: \x1b[0m"),
        "{coloured:?}"
    );
    assert!(!said(doctor().env("NO_COLOR", "1")).contains('\x1b'));
    assert!(!stdout(&doctor().output()?).contains('\x1b'));
    Ok(())
}

#[test]
fn tables_fit_the_terminal() -> TestResult {
    let servers = Servers::start(1)?;
    let _guard = patient(&servers.urls())
        .owner_label("long".repeat(20).as_str())
        .build()?
        .mutex("report")
        .lock()?;
    let widest = |columns: usize| {
        let line =
            format!("stty cols {columns} rows 20; NO_COLOR=1 \"$0\" status report; echo over");
        let mut shell = Command::new("setsid");
        let variables = quorlock(&servers);
        shell.envs(
            variables
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let terminal =
            Terminal::start(shell.args(["sh", "-c", &line, env!("CARGO_BIN_EXE_quorlock")]));
        terminal.wait_for("over\r\n");
        let said = terminal.said();
        let table = said
            .lines()
            .skip_while(|it| !it.starts_with("report: "))
            .skip(1);
        table.map(|it| it.trim_end().len()).max().unwrap()
    };
    assert!(widest(80) <= 80 && 80 < widest(200));
    Ok(())
}

/// Repeating is of no use: 69 would say so.
#[test]
fn a_permanent_refusal_has_the_status_of_a_configuration_error() -> TestResult {
    let servers = Servers::start(3)?;
    let take = |command: &str, options: &[&str]| {
        let mut take = bare();
        take.env("QUORLOCK_NODES", servers.urls().join(","))
            .env("QUORLOCK_RESPONSE_TIMEOUT", "2")
            .args([command, "-n", "report"])
            .args(options);
        if command == "run" {
            take.args(["--", "true"]);
        } else {
            take.arg("--until-signal");
        }
        let output = take.output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let vouched = bare()
        .env("QUORLOCK_NODES", servers.urls().join(","))
        .args(["vouch", "--yes"])
        .output()?;
    assert!(vouched.status.success(), "{}", stderr(&vouched));
    for command in ["run", "hold"] {
        // A longer ttl than the servers have.
        let (status, text) = take(command, &["--ttl", "60"]);
        assert_eq!(status, Some(78), "{text}");
        assert!(text.contains("doctor --max-ttl 60s"), "{text}");
        // Other programs have a quarantine.
        let (status, text) = take(command, &["--no-quarantine"]);
        assert_eq!(status, Some(78), "{text}");
    }
    for server in &servers {
        server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])?;
    }
    for command in ["run", "hold"] {
        let (status, text) = take(command, &["--strict"]);
        assert_eq!(status, Some(78), "{text}");
        assert!(text.contains("maxmemory-policy"), "{text}");
    }
    // One alone is in nobody's way, and servers that are down may come back.
    servers[1].kill()?;
    servers[2].kill()?;
    let (status, text) = take("run", &["--ttl", "60"]);
    assert_eq!(status, Some(69), "{text}");
    Ok(())
}

#[test]
fn errors_of_settings_name_options_of_the_command() -> TestResult {
    for options in [&[][..], &["--prefix", "shop:"]] {
        let output = bare()
            .args(["--server", "redis+cluster://a,b,c", "status", "report"])
            .args(options)
            .output()?;
        assert_eq!(output.status.code(), Some(78));
        let text = stderr(&output);
        assert!(
            text.contains("server 1 of --node: ")
                && text.contains("--prefix '{locks}:'")
                && !text.contains(".prefix("),
            "{text}"
        );
    }
    let mut command = bare();
    command.args([
        "--server",
        "redis://127.0.0.1:1",
        "--node",
        "redis://127.0.0.1:2",
    ]);
    assert_eq!(addresses(&mut command), ["127.0.0.1:1", "127.0.0.1:2"]);
    Ok(())
}
