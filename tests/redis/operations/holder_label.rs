//! The label of a lock's holder: stored behind the random part of the value, and told to calls that are refused.

use std::process;

use devnodes::{Server, Servers, eventually};
use quorlock::AcquireError;
use quorlock::error::{NodeAnswer, NodeReport};

use crate::support::*;

/// The error of a call for `name` that has been refused by all nodes.
fn refused(servers: &Servers, name: &str) -> AcquireError {
    let locks = manager(servers);
    let is_held = |row: &NodeReport| matches!(row.answer, NodeAnswer::Held { .. });
    error_in_the_end(&locks, name, |err| {
        err.nodes().iter().all(is_held) && !err.nodes().is_empty()
    })
}

fn holder(err: &AcquireError, node: usize) -> Option<&str> {
    match answer(err, node) {
        NodeAnswer::Held { holder, .. } => holder.as_deref(),
        other => panic!("n{node} said {other:?}"),
    }
}

/// The value of the lock "report": its random part, and the label.
fn value(server: &Server) -> (String, Option<String>) {
    let value = String::from_utf8(server.get("report").unwrap()).unwrap();
    match value.split_once(' ') {
        Some((token, label)) => (token.to_owned(), Some(label.to_owned())),
        None => (value, None),
    }
}

fn is_random(token: &str) -> bool {
    token.len() == 32 && token.bytes().all(|it| it.is_ascii_hexdigit())
}

fn names_of_connections(server: &Server) -> Vec<String> {
    let list = server.command(&["CLIENT", "LIST"]).unwrap();
    let list = String::from_utf8_lossy(list.as_bytes().unwrap()).into_owned();
    list.split_whitespace()
        .filter_map(|it| it.strip_prefix("name="))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_refusal_names_the_holding_process_without_its_token() -> TestResult {
    let servers = Servers::start(3)?;
    let first = builder(servers.urls()).owner_label("nightly run").build()?;
    let guard = first.mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);
    let (token, label) = value(&servers[0]);
    let label = label.unwrap();

    let err = refused(&servers, "report");

    let [host, id, "nightly_run"] = label.split('/').collect::<Vec<_>>()[..] else {
        panic!("{label}")
    };
    assert!(!host.is_empty());
    assert_eq!(id, process::id().to_string());
    assert!(is_random(&token), "{token}");
    assert!((0..3).all(|i| holder(&err, i) == Some(&label)), "{err}");
    let shown = format!("{err} {err:?} {:?}", err.nodes());
    assert!(shown.contains(&format!("held by {label}, ")), "{shown}");
    for secret in [&token[..9], &token[8..]] {
        assert!(!shown.contains(secret), "{shown}");
    }

    // The value is the same in whatever is sent for the hold.
    guard.extend(LONG)?;
    assert_eq!(value(&servers[1]), (token, Some(label)));
    guard.release()?;
    nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a_manager_without_a_label_has_a_random_value_and_a_plain_name() -> TestResult {
    needs!(ConnectionNames);
    let servers = Servers::start(1)?;
    let locks = builder(servers.urls()).without_owner_label().build()?;
    let _guard = locks.mutex("report").lock()?;

    let (token, label) = value(&servers[0]);
    assert!(is_random(&token), "{token}");
    assert_eq!(label, None);
    assert!(names_of_connections(&servers[0]).contains(&"quorlock".to_owned()));
    let err = refused(&servers, "report");
    assert_eq!(holder(&err, 0), None);
    let words = "held by another client, ";
    assert!(err.to_string().contains(words), "{err}");
    Ok(())
}

#[test]
fn connections_are_named_after_their_process() -> TestResult {
    needs!(ConnectionNames);
    let server = Server::start()?;
    let url = add_user(&server, "locks", "~* &* +@all -client");
    let label = "a b\r\nSET x y\r\n\0\u{202e}ü\"";
    let locks = builder([url]).owner_label(label).build()?;

    drop(locks.mutex("report").lock()?);

    let names = names_of_connections(&server);
    let end = format!("/{}/a_b__SET_x_y_____\"", process::id());
    let is_ours = |name: &String| name.starts_with("quorlock:") && name.ends_with(&end);
    assert!(names.iter().any(is_ours), "{names:?}");
    Ok(())
}

#[test]
fn a_value_of_another_client_is_secret_except_for_its_label() -> TestResult {
    let servers = Servers::start(1)?;
    let hex = "0123456789abcdef0123456789abcdef";
    let long = format!("{hex} {}", "x".repeat(64));
    let without_label = [
        "foreign secret",
        "foreign",
        hex,
        &hex[1..],
        &format!("{hex}f x/1 foreign"),
        &long,
        &format!("{hex} "),
        "",
    ];
    for value in without_label {
        set(&servers[0], "report", value);
        let err = refused(&servers, "report");
        assert_eq!(holder(&err, 0), None, "{value}");
        let shown = format!("{err} {err:?}");
        let words = "held by another client, no expiry";
        assert!(shown.contains(words), "{shown}");
        for secret in ["foreign", "012345678", "xx"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
    // Only such a value has a label.
    for label in ["web-3/4711", &"x".repeat(63)] {
        set(&servers[0], "report", &format!("{hex} {label}"));
        assert_eq!(holder(&refused(&servers, "report"), 0), Some(label));
    }
    Ok(())
}
