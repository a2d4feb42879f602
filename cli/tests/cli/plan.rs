//! `quorlock doctor --to`.

use std::fs;
use std::process::{Command, Output};

use devnodes::{Proxy, Server, Servers};
use serde_json::{Value, json};

use crate::schema::assert_form;
use crate::support::*;

/// Plans the way from the servers at these URLs to those of a file.
fn plans(in_use: &[String], wanted: &[String], options: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new-servers");
    fs::write(&file, format!("# new\n{}\n", wanted.join("\n"))).unwrap();
    let mut command: Command = quorlock_at(in_use);
    command
        .env_remove("QUORLOCK_NO_QUARANTINE")
        .args(["doctor", "--to"])
        .arg(file)
        .args(options);
    command.output().unwrap()
}

/// The steps, as JSON.
#[track_caller]
fn steps(in_use: &[String], wanted: &[String]) -> Value {
    let output = plans(in_use, wanted, &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_form(&json, "plan");
    json["steps"].clone()
}

/// Some of the servers, by number.
fn urls(servers: &Servers, numbers: &[usize]) -> Vec<String> {
    numbers.iter().map(|it| servers[*it].url()).collect()
}

fn addresses(servers: &Servers, numbers: &[usize]) -> Vec<String> {
    numbers
        .iter()
        .map(|it| servers[*it].addr().to_string())
        .collect()
}

/// A step, in numbers of servers.
fn step(servers: &Servers, nodes: &[usize], adds: &[usize], removes: &[usize]) -> Value {
    let [nodes, adds, removes] = [nodes, adds, removes].map(|it| addresses(servers, it));
    json!({ "nodes": nodes, "adds": adds, "removes": removes })
}

#[track_caller]
fn assert_refused(output: &Output, status: i32, reasons: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(
        reasons.iter().all(|it| text.contains(it)) && text.contains("new-servers"),
        "{reasons:?}: {text}"
    );
    assert_eq!(stdout(output), "");
}

#[test]
fn three_servers_become_five_in_two_deployments_and_nothing_is_written() -> TestResult {
    let servers = Servers::start(5)?;
    let (three, five) = (urls(&servers, &[0, 1, 2]), servers.urls());
    let expected = json!([
        step(&servers, &[0, 1, 2, 3], &[3], &[]),
        step(&servers, &[0, 1, 2, 3, 4], &[4], &[])
    ]);
    assert_eq!(steps(&three, &five), expected);

    let text = stdout(&plans(&three, &five, &[]));
    let set = addresses(&servers, &[0, 1, 2, 3]).join(", ");
    assert!(
        text.starts_with(&format!(
            "1. {set}; adds {}\n   Deploy to all programs. ",
            servers[3].addr()
        )),
        "{text}"
    );
    assert_eq!(
        text.matches("`quorlock doctor --forget`").count(),
        2,
        "{text}"
    );
    assert!(!text.contains("Now stop"), "{text}");
    assert!(
        servers
            .iter()
            .all(|it| !it.exists("quorlock:record") && it.key_count() == 0)
    );
    Ok(())
}

#[test]
fn a_dead_server_is_replaced_and_leaves_before_others() -> TestResult {
    let servers = Servers::start(5)?;
    servers[0].kill()?;
    let in_use = urls(&servers, &[0, 1, 2]);
    let replaced = urls(&servers, &[1, 2, 3]);
    let expected = json!([
        step(&servers, &[1, 2, 0, 3], &[3], &[]),
        step(&servers, &[1, 2, 3], &[], &[0])
    ]);
    assert_eq!(steps(&in_use, &replaced), expected);
    let text = stdout(&plans(&in_use, &replaced, &[]));
    let end = format!(
        "Now stop {}. Before it is added again, empty it: FLUSHALL.\n",
        servers[0].addr()
    );
    assert!(text.ends_with(&end), "{text}");

    let expected = json!([
        step(&servers, &[1, 2, 0, 3], &[3], &[]),
        step(&servers, &[1, 2, 3, 4], &[4], &[0]),
        step(&servers, &[1, 3, 4], &[], &[2])
    ]);
    assert_eq!(steps(&in_use, &urls(&servers, &[1, 3, 4])), expected);

    // One that stays has to vote.
    let refused = plans(&in_use, &urls(&servers, &[0, 1, 2, 3]), &[]);
    assert_refused(
        &refused,
        2,
        &[&format!("{}: cannot connect: ", servers[0].addr())],
    );
    Ok(())
}

#[test]
fn a_server_is_the_same_at_two_addresses_and_counts_once() -> TestResult {
    let servers = Servers::start(3)?;
    let proxy = Proxy::start(servers[0].addr())?;
    let by_proxy = [proxy.url(), servers[1].url(), servers[2].url()];
    assert_eq!(steps(&servers.urls(), &by_proxy), json!([]));

    let twice = urls(&servers, &[0, 1, 2, 1]);
    assert_refused(
        &plans(&servers.urls(), &twice, &[]),
        78,
        &["same server", &servers[1].addr().to_string()],
    );
    let twice = [by_proxy[0].clone(), servers[1].url(), servers[0].url()];
    let (one, other) = (proxy.addr().to_string(), servers[0].addr().to_string());
    let refused = plans(&servers.urls(), &twice, &[]);
    assert_refused(
        &refused,
        78,
        &[&format!("{one} and {other} are the same server")],
    );
    Ok(())
}

#[test]
fn a_new_server_without_a_vote_is_refused_and_named() -> TestResult {
    let servers = Servers::start(4)?;
    servers[3].command(&["CONFIG", "SET", "maxmemory", "100mb"])?;
    servers[3].command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])?;
    let mut wanted = servers.urls();
    wanted.push("redis://127.0.0.1:1".to_owned());
    let evicts = format!("{}: may evict locks", servers[3].addr());
    let refused = plans(&wanted[..3], &wanted, &[]);
    assert_refused(
        &refused,
        2,
        &[
            "127.0.0.1:1: cannot connect: ",
            &evicts,
            "remove it from the file",
        ],
    );
    assert!(servers.iter().all(|it| it.key_count() == 0));
    Ok(())
}

#[test]
fn equal_sets_need_no_deployment_and_a_file_without_servers_is_none() -> TestResult {
    let server = Server::builder().password("hunter2").start()?;
    let url = format!("redis://:hunter2@{}", server.addr());
    let in_use = std::slice::from_ref(&url);
    let output = plans(in_use, in_use, &[]);
    assert!(
        output.status.success() && stdout(&output).ends_with("nothing to change.\n"),
        "{}",
        stderr(&output)
    );
    assert!(!stdout(&output).contains("hunter2"));

    assert_refused(&plans(in_use, &[], &[]), 78, &["new-servers: no servers"]);
    assert_refused(
        &plans(in_use, &["?".to_owned()], &[]),
        78,
        &["line 2 of ", "new-servers: "],
    );
    Ok(())
}
