//! Variables beside options and files: empty ones, opposite ones, wrong ones.

use std::fs;
use std::process::Command;

use devnodes::Server;
use devnodes::tls::{Authority, Terminator};
use serde_json::Value;

use crate::doctor::{fit, with_quarantine};
use crate::settings::addresses;
use crate::support::*;

/// All variables of a command, as its help names them.
fn variables(command: &str) -> Vec<String> {
    let help = stdout(&bare().args(["help", command]).output().unwrap());
    let names = help.split("[env: ").skip(1);
    let names = names.map(|it| it[..it.find(['=', ']']).unwrap()].to_owned());
    let names: Vec<_> = names.collect();
    assert!(10 < names.len(), "{help}");
    names
}

#[test]
fn every_empty_variable_is_as_if_unset() -> TestResult {
    let servers = fit()?;
    for (command, words) in [
        ("run", &["report", "--", "true"][..]),
        ("status", &["report"]),
        ("ls", &[]),
        ("doctor", &["--looks", "1"]),
        ("vouch", &["--yes"]),
    ] {
        let mut quorlock = bare();
        quorlock.args(["--ttl", "30", "--response-timeout", "5"]);
        for url in servers.urls() {
            quorlock.args(["--node", &url]);
        }
        for name in variables(command).iter().map(String::as_str) {
            quorlock.env(name, "");
        }
        quorlock
            .env("QUORLOCK_NODES", "")
            .env("QUORLOCK_PASSWORD", "");
        let output = quorlock.arg(command).args(words).output()?;
        let text = format!("{}{}", stdout(&output), stderr(&output));
        assert!(output.status.success(), "{command}: {text}");
        assert!(!text.contains("no_quarantine"), "{command}: {text}");
    }
    Ok(())
}

#[test]
fn servers_and_passwords_of_options_override_those_of_variables() -> TestResult {
    let server = Server::builder().password("open-sesame").start()?;
    let folder = tempfile::tempdir()?;
    let (right, nodes) = (folder.path().join("right"), folder.path().join("nodes"));
    fs::write(&right, "open-sesame\n")?;
    fs::write(&nodes, "redis://127.0.0.1:5\n")?;
    let url = format!("redis://{}", server.addr());
    let mut command = bare();
    command
        .env("QUORLOCK_PASSWORD", "hunter2")
        .args(["--node", &url, "--password-file"])
        .arg(&right);
    let text = stdout(&command.args(["status", "report"]).output()?);
    assert!(!text.contains("login refused"), "{text}");

    let mut command = bare();
    command.env("QUORLOCK_NODES", "redis://127.0.0.1:2");
    command.arg("--nodes-file").arg(&nodes);
    assert_eq!(addresses(&mut command), ["127.0.0.1:5"]);
    let mut command = bare();
    command.env("QUORLOCK_NODES_FILE", &nodes);
    command.args(["--node", "redis://127.0.0.1:1"]);
    assert_eq!(addresses(&mut command), ["127.0.0.1:1"]);
    Ok(())
}

#[test]
fn files_and_variables_may_have_quotes_bom_and_line_ends() -> TestResult {
    let folder = tempfile::tempdir()?;
    let nodes = folder.path().join("nodes");
    for text in [
        "redis://127.0.0.1:1\r\nredis://127.0.0.1:2\r\n",
        "\u{feff}redis://127.0.0.1:1\nredis://127.0.0.1:2",
        "\u{feff}# ours\nredis://127.0.0.1:1 # first\n\tredis://127.0.0.1:2\t#second\n",
        "\"redis://127.0.0.1:1\"\n'redis://127.0.0.1:2'\n",
        "\"redis://127.0.0.1:1\",\n\"redis://127.0.0.1:2\",\n",
    ] {
        fs::write(&nodes, text)?;
        let found = addresses(bare().arg("--nodes-file").arg(&nodes));
        assert_eq!(found, ["127.0.0.1:1", "127.0.0.1:2"], "{text:?}");
    }
    let quoted = "\"redis://127.0.0.1:1 redis://127.0.0.1:2\"";
    let found = addresses(bare().env("QUORLOCK_NODES", quoted));
    assert_eq!(found, ["127.0.0.1:1", "127.0.0.1:2"]);

    let server = Server::builder().password("open-sesame").start()?;
    fs::write(&nodes, "\u{feff}open-sesame\r\n")?;
    let mut command = bare();
    command.args(["--node", &format!("redis://{}", server.addr())]);
    command.arg("--password-file").arg(&nodes);
    let output = command.args(["status", "report"]).output()?;
    assert!(!stdout(&output).contains("login refused"));
    Ok(())
}

#[test]
fn a_wrong_value_is_named_with_its_option_also_if_a_variable_has_it() {
    for (variable, options, words) in [
        ("abc", &[][..], "'abc' for '--ttl <TIME>'"),
        ("30", &["-w", "soon"], "'soon' for '--wait <TIME>'"),
    ] {
        let mut run = bare();
        run.env("QUORLOCK_TTL", variable).arg("run").args(options);
        let output = run.args(["job", "--", "true"]).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(64), "{text}");
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn help_and_manual_name_the_variables_of_servers_and_passwords() -> TestResult {
    let pages = tempfile::tempdir()?;
    assert!(bare().arg("man").arg(pages.path()).status()?.success());
    let page = |name: &str| fs::read_to_string(pages.path().join(name));
    let help = |args: &[&str]| Ok(stdout(&bare().args(args).output()?));
    let texts: [std::io::Result<String>; 5] = [
        help(&["--help"]),
        help(&["-h"]),
        help(&["help", "run"]),
        page("quorlock.1"),
        page("quorlock-doctor.1"),
    ];
    for text in texts {
        let text = text?;
        for name in ["QUORLOCK_NODES", "QUORLOCK_PASSWORD"] {
            let mut found = text.match_indices(name);
            let is_itself = |at: usize| !text[at + name.len()..].starts_with('_');
            assert!(found.any(|(at, _)| is_itself(at)), "{name}: {text}");
        }
    }
    Ok(())
}

#[test]
fn the_hint_for_a_double_dash_appears_only_where_it_helps() -> TestResult {
    for (line, helps) in [
        ("run job true", true),
        ("lock job ls -l", true),
        ("run -w 5 job report --all", true),
        ("run", true),
        ("run -w abc job true", true),
        ("run job --wiat 5 -- true", false),
        ("run job -c true --wiat", false),
        ("status a b --bad", false),
        ("rnu job true", false),
    ] {
        let output = bare().args(line.split(' ')).output()?;
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(64), "{line}: {text}");
        assert_eq!(text.contains("put -- before"), helps, "{line}: {text}");
    }
    Ok(())
}

#[test]
fn unlock_is_another_name_of_release_and_not_similar_to_lock() -> TestResult {
    let output = bare().args(["unlock", "job"]).output()?;
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(64), "{text}");
    assert!(
        text.contains("pass --force to take the lock from it") && !text.contains("'lock'"),
        "{text}"
    );
    let text = stderr(&bare().args(["statsu", "job"]).output()?);
    assert!(text.contains("'status'"), "{text}");
    Ok(())
}

#[test]
fn certificates_come_from_options_and_variables() -> TestResult {
    let server = Server::start()?;
    let authority = Authority::generate();
    let certificate = authority.certify(&["127.0.0.1"]);
    let terminator = Terminator::start(server.addr(), &certificate, Some(&authority))?;
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let client = authority.certify(&["client"]);
    fs::write(path("ca"), authority.pem())?;
    fs::write(path("cert"), &client.chain)?;
    fs::write(path("key"), &client.key)?;
    let url = format!("redis{}", terminator.url().trim_start_matches("redis"));
    let status = |command: &mut Command| {
        let output = command.args(["status", "report"]).output().unwrap();
        (output.status.code(), stdout(&output) + &stderr(&output))
    };

    let mut options = bare();
    options.args(["--node", &url]);
    let (code, text) = status(&mut options);
    assert_eq!(code, Some(69), "{text}");
    let mut options = bare();
    options.args(["--node", &url, "--ca-file"]).arg(path("ca"));
    options
        .arg("--cert")
        .arg(path("cert"))
        .arg("--key")
        .arg(path("key"));
    let mut variables = bare();
    variables
        .env("QUORLOCK_NODES", &url)
        .env("SSL_CERT_FILE", path("ca"));
    variables
        .env("QUORLOCK_CERT", path("cert"))
        .env("QUORLOCK_KEY", path("key"));
    for mut command in [options, variables] {
        let (code, text) = status(command.env("QUORLOCK_RESPONSE_TIMEOUT", "5"));
        assert_eq!(code, Some(0), "{text}");
    }

    let mut half = bare();
    half.args(["--node", &url, "--cert"]).arg(path("cert"));
    let (code, text) = status(&mut half);
    assert!(code == Some(78) && text.contains("--key"), "{text}");
    let mut plain = bare();
    plain
        .args(["--node", "redis://127.0.0.1:1", "--ca-file"])
        .arg(path("ca"));
    let (code, text) = status(&mut plain);
    assert!(code == Some(78) && text.contains("rediss://"), "{text}");
    Ok(())
}

#[test]
fn strict_takes_the_vote_of_a_server_that_may_evict_locks() -> TestResult {
    let servers = fit()?;
    servers[1].command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])?;
    let looks = |command: &mut Command| -> Value {
        let output = command.args(["doctor", "--json", "--looks", "1"]).output();
        serde_json::from_slice(&output.unwrap().stdout).unwrap()
    };
    let level = |json: &Value| {
        let findings = json["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 1, "{json}");
        assert_eq!(findings[0]["what"], "would_evict", "{json}");
        let votes = json["nodes"][1]["votes"].as_bool().unwrap();
        (findings[0]["level"].as_str().unwrap().to_owned(), votes)
    };
    let weak = ("warning".to_owned(), true);
    let unfit = ("unfit".to_owned(), false);
    assert_eq!(level(&looks(&mut with_quarantine(&servers))), weak);
    assert_eq!(
        level(&looks(with_quarantine(&servers).arg("--strict"))),
        unfit
    );
    let by_variable = looks(with_quarantine(&servers).env("QUORLOCK_STRICT", "1"));
    assert_eq!(level(&by_variable), unfit);
    let by_variable = looks(with_quarantine(&servers).env("QUORLOCK_STRICT", "0"));
    assert_eq!(level(&by_variable), weak);
    Ok(())
}
