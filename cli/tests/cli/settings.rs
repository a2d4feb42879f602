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
fn servers_come_from_options_then_variables_then_a_file_of_them_then_the_config() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (nodes, config) = (folder.path().join("nodes"), folder.path().join("config"));
    fs::write(
        &nodes,
        "# ours\n\n redis://127.0.0.1:4\nredis://127.0.0.1:5\n",
    )?;
    fs::write(&config, "nodes = [\"redis://127.0.0.1:6\"]\n")?;
    let mut command = bare();
    command.env("QUORLOCK_CONFIG", &config);
    assert_eq!(addresses(&mut command), ["127.0.0.1:6"]);
    let mut command = bare();
    command
        .env("QUORLOCK_CONFIG", &config)
        .env("QUORLOCK_NODES_FILE", &nodes)
        .env("QUORLOCK_NODES", "");
    assert_eq!(addresses(&mut command), ["127.0.0.1:4", "127.0.0.1:5"]);
    let mut command = bare();
    command
        .env("QUORLOCK_NODES", "redis://127.0.0.1:2,redis://127.0.0.1:3")
        .env("QUORLOCK_NODES_FILE", &nodes);
    assert_eq!(addresses(&mut command), ["127.0.0.1:2", "127.0.0.1:3"]);
    let mut command = bare();
    command
        .env("QUORLOCK_NODES", "redis://127.0.0.1:2")
        .args(["--node", "redis://127.0.0.1:1"]);
    assert_eq!(addresses(&mut command), ["127.0.0.1:1"]);
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
fn a_config_file_has_what_options_have_and_options_count_before_it() -> TestResult {
    let server = Server::builder().password("open-sesame").start()?;
    let folder = tempfile::tempdir()?;
    let (config, password, wrong) = (
        folder.path().join("config"),
        folder.path().join("password"),
        folder.path().join("wrong"),
    );
    fs::write(&password, "open-sesame\n")?;
    fs::write(&wrong, "hunter2\n")?;
    let text = format!(
        "nodes = [\"redis://{}\"]\npassword-file = {:?}\nprefix = \"app:\"\nttl = \"40\"\nmax-ttl = \"1h\"\n\
         response-timeout = \"10s\"\nconnect-timeout = \"20s\"\n",
        server.addr(),
        password.display()
    );
    fs::write(&config, &text)?;
    let hold = |options: &[&str]| {
        let mut command = bare();
        command
            .arg("--config")
            .arg(&config)
            .args(["hold", "--json", "--no-quarantine", "report"])
            .args(options);
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
    let mut refused = bare();
    refused
        .arg("--config")
        .arg(&config)
        .arg("--password-file")
        .arg(&wrong)
        .args(["status", "report"]);
    assert!(stdout(&refused.output()?).contains("login refused"));

    for wrong in [
        "ttl = 40\n",
        "ttl = \"soon\"\n",
        "time-to-live = \"40\"\n",
        "nodes = \"redis://h\"\n",
        "?\n",
    ] {
        fs::write(&config, wrong)?;
        let output = hold(&["-n"]).output()?;
        assert_eq!(
            output.status.code(),
            Some(78),
            "{wrong}: {}",
            stderr(&output)
        );
    }
    fs::remove_file(&config)?;
    let output = hold(&["-n"]).output()?;
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("config"), "{}", stderr(&output));
    Ok(())
}

#[test]
fn the_config_file_of_the_guide_is_one() -> TestResult {
    let page = include_str!("../../../src/guide/command.md");
    let (_, rest) = page.split_once("```toml\n").ok_or("no file")?;
    let (text, _) = rest.split_once("```").ok_or("no end")?;
    let folder = tempfile::tempdir()?;
    let (config, password) = (folder.path().join("config"), folder.path().join("password"));
    fs::write(&password, "open-sesame\n")?;
    fs::write(
        &config,
        text.replace("/etc/quorlock/password", &password.display().to_string()),
    )?;
    let mut command = bare();
    command
        .arg("--config")
        .arg(&config)
        .args(["--node", "redis://127.0.0.1:1"]);
    assert_eq!(addresses(&mut command), ["127.0.0.1:1"]);
    Ok(())
}

#[test]
fn variables_count_as_the_options_do() -> TestResult {
    let servers = Servers::start(3)?;
    let guard = patient(&servers.urls()).build()?.mutex("report").lock()?;
    let run = |variables: &[(&str, &str)]| {
        let mut command = quorlock(&servers);
        command
            .args(["run", "report", "--", "true"])
            .envs(variables.iter().copied());
        let output = command.output().unwrap();
        (output.status.code(), stderr(&output).is_empty())
    };
    assert_eq!(run(&[("QUORLOCK_NO_WAIT", "1")]), (Some(75), false));
    assert_eq!(
        run(&[("QUORLOCK_WAIT", "100ms"), ("QUORLOCK_NO_WAIT", "no")]),
        (Some(75), false)
    );
    assert_eq!(
        run(&[
            ("QUORLOCK_NO_WAIT", "yes"),
            ("QUORLOCK_CONFLICT_EXIT_CODE", "3")
        ]),
        (Some(3), false)
    );
    assert_eq!(
        run(&[("QUORLOCK_NO_WAIT", "true"), ("QUORLOCK_QUIET", "on")]),
        (Some(75), true)
    );
    assert_eq!(
        run(&[("QUORLOCK_PERMITS", "2"), ("QUORLOCK_NO_WAIT", "1")]),
        (Some(0), true)
    );
    assert_eq!(run(&[("QUORLOCK_WAIT", "soon")]), (Some(64), false));
    let output = quorlock(&servers)
        .args(["status", "report"])
        .env("QUORLOCK_JSON", "1")
        .output()?;
    assert_eq!(
        serde_json::from_slice::<Value>(&output.stdout)?["state"],
        "held"
    );
    drop(guard);
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
fn a_full_disk_is_a_status_for_every_command_that_says_something() -> TestResult {
    let servers = Servers::start(1)?;
    let commands: [&[&str]; 6] = [
        &["ls"],
        &["ls", "--json"],
        &["vouch", "--yes"],
        &["release", "--force", "--yes", "report"],
        &["completions", "bash"],
        &["man"],
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
    let (nodes, config) = (folder.path().join("nodes"), folder.path().join("config"));
    fs::write(&nodes, "# ours\nredis://127.0.0.1:1\n\n127.0.0.1:2\n")?;
    fs::write(
        &config,
        "nodes = [\"redis://127.0.0.1:1\", \"redis://127.0.0.1:1\"]\n",
    )?;
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
    let text = refused(bare().arg("--config").arg(&config));
    let both = format!(
        "server 1 of {0} and server 2 of {0} are the same server",
        config.display()
    );
    assert!(text.contains(&both), "{text}");
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
fn what_has_to_be_changed_first_is_the_status_of_a_configuration() -> TestResult {
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
fn what_a_setting_lacks_is_named_in_the_words_of_the_command() -> TestResult {
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
