//! `quorlock bench`.

use devnodes::{Server, Servers, eventually};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::*;

fn keys(server: &Server) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).unwrap();
    keys.as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_str().unwrap().to_owned())
        .collect()
}

/// Nothing but the server's record, which each client leaves that locks there.
#[track_caller]
fn assert_nothing_is_left(servers: &Servers) {
    for server in servers.iter().filter(|it| it.is_running()) {
        assert_eq!(keys(server), ["quorlock:record"]);
    }
}

fn bench(servers: &Servers, args: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    let output = quorlock(servers)
        .args(["bench", "--json"])
        .args(args)
        .output()
        .unwrap();
    let lines = stdout(&output)
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    (output.status.code(), lines, stderr(&output))
}

#[test]
fn what_it_will_do_is_said_first_and_what_it_has_measured_then_and_nothing_is_left() -> TestResult {
    let servers = Servers::start(3)?;
    servers[0].command(&["SET", "other", "x"])?;
    let output = quorlock(&servers)
        .args(["bench", "--for", "400ms", "--threads", "3"])
        .output()?;
    let (said, text) = (stderr(&output), stdout(&output));
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.starts_with("quorlock: full load for the servers"),
        "{said}"
    );
    assert!(
        said.contains("  quorlock-bench-") && said.contains("expire within 60.0 s"),
        "{said}"
    );
    // No bar: it is no terminal.
    assert!(
        !said.contains(['\r', '\x1b']) && !text.contains('\x1b'),
        "{said}{text}"
    );
    for what in [
        "trip to n0 (",
        "n1 (",
        "n2 (",
        "release, 1 thread ",
        "release, 3 threads ",
        "waiting client ",
        "MEDIAN",
        "  ##",
    ] {
        assert!(text.contains(what), "{what}: {text}");
    }
    assert_eq!(servers[0].command(&["DEL", "other"])?.as_int(), Some(1));
    assert_nothing_is_left(&servers);
    Ok(())
}

#[test]
fn programs_get_the_numbers_and_they_fit_together() -> TestResult {
    let servers = Servers::start(3)?;
    let (status, lines, said) = bench(&servers, &["--for", "1s", "--threads", "4"]);
    assert_eq!((status, said.as_str()), (Some(0), ""));
    let [begins, measured] = &lines[..] else {
        panic!("{lines:?}")
    };
    assert!(
        begins["names"]
            .as_str()
            .is_some_and(|it| it.starts_with("quorlock-bench-") && it.ends_with("-*"))
    );
    let parts = [
        "/round_trips/0/times",
        "/round_trips/2/times",
        "/pairs/0/times",
        "/pairs/1/times",
        "/hand_over",
    ];
    for times in parts.map(|it| measured.pointer(it).unwrap()) {
        let all = ["p50", "p90", "p99", "max"].map(|it| times[it].as_f64().unwrap());
        assert!(
            0.0 < all[0] && all.is_sorted() && 0 < times["count"].as_u64().unwrap(),
            "{times}"
        );
    }
    let threads = [0, 1].map(|it| measured["pairs"][it]["threads"].as_u64());
    assert_eq!(
        (threads, &measured["left_on"]),
        ([Some(1), Some(4)], &Value::Array(vec![]))
    );
    assert!(
        measured["pairs"][0]["per_second"]
            .as_f64()
            .is_some_and(|it| 0.0 < it),
        "{measured}"
    );
    assert_nothing_is_left(&servers);
    Ok(())
}

#[test]
fn with_quarantine_servers_without_a_vote_are_not_measured_and_others_keep_their_kind() -> TestResult
{
    let servers = Servers::start(3)?;
    let bench = || {
        let mut command = quorlock(&servers);
        command
            .env_remove("QUORLOCK_NO_QUARANTINE")
            .args(["bench", "--json", "--for", "400ms"]);
        command
    };
    let new = bench().output()?;
    assert_eq!(new.status.code(), Some(69), "{}", stdout(&new));
    assert!(stderr(&new).contains("quarantined"), "{}", stderr(&new));
    assert_nothing_is_left(&servers);

    assert!(
        quorlock(&servers)
            .env_remove("QUORLOCK_NO_QUARANTINE")
            .args(["vouch", "--yes"])
            .status()?
            .success()
    );
    let vouched = bench().output()?;
    assert_eq!(vouched.status.code(), Some(0), "{}", stderr(&vouched));
    assert_nothing_is_left(&servers);
    let without = bench().arg("--no-quarantine").output()?;
    assert_eq!(without.status.code(), Some(78), "{}", stdout(&without));
    assert!(
        stderr(&without).contains("enable quarantine here"),
        "{}",
        stderr(&without)
    );
    Ok(())
}

/// In each part of the measurement, which is known by what stands on the servers.
#[test]
fn a_signal_ends_it_and_nothing_is_left() -> TestResult {
    let servers = Servers::start(3)?;
    let held = |it: &String| it.starts_with("quorlock-bench-");
    let by_one_thread = |it: &String| it.starts_with("quorlock:fence:") && it.ends_with("-1");
    let by_several = |it: &String| it.starts_with("quorlock:fence:") && it.ends_with("-2");
    let a_client_waits = |it: &String| it.starts_with("quorlock:waiting:");
    let cases = [
        (
            by_one_thread as fn(&String) -> bool,
            Signal::INT,
            130,
            "40s",
        ),
        (held, Signal::HUP, 129, "2s"),
        (by_several, Signal::TERM, 143, "2s"),
        (a_client_waits, Signal::INT, 130, "2s"),
    ];
    for (is_there, signal, status, time) in cases {
        // One that was over before the signal came is no case of this.
        let mut ended = Some(0);
        while ended == Some(0) {
            let mut bench =
                Running::start(quorlock(&servers).args(["bench", "--json", "--for", time]));
            assert!(bench.line().is_some_and(|it| it.contains("begins")));
            let mut is_over = false;
            eventually("it has come so far", || {
                is_over = bench.is_over();
                is_over || keys(&servers[1]).iter().any(is_there)
            });
            if !is_over {
                bench.signal(signal);
            }
            ended = bench.status();
            assert_nothing_is_left(&servers);
        }
        assert_eq!(ended, Some(status), "{time}");
    }
    Ok(())
}

#[test]
fn a_server_that_is_down_is_said_and_a_majority_is_a_status() -> TestResult {
    let servers = Servers::start(3)?;
    servers[2].kill()?;
    let (status, lines, said) = bench(&servers, &["--for", "200ms"]);
    assert_eq!((status, said.as_str()), (Some(0), ""));
    let measured = &lines[1];
    assert!(
        measured["round_trips"][2]["failure"]
            .as_str()
            .is_some_and(|it| it.contains("cannot connect"))
    );
    assert!(
        measured["left_on"][0]
            .as_str()
            .is_some_and(|it| it.starts_with("n2 (")),
        "{measured}"
    );
    assert_nothing_is_left(&servers);

    servers[1].kill()?;
    let (status, lines, said) = bench(&servers, &["--for", "200ms"]);
    assert_eq!((status, lines.len()), (Some(69), 1));
    let error: Value = serde_json::from_str(&said)?;
    assert!(
        error["error"]
            .as_str()
            .is_some_and(|it| it.contains("keys may be left on n1 (")),
        "{error}"
    );
    assert_nothing_is_left(&servers);
    Ok(())
}

#[test]
fn a_terminal_has_a_bar() -> TestResult {
    let servers = Servers::start(3)?;
    let mut terminal = Terminal::start(quorlock(&servers).args(["bench", "--for", "2s"]));
    terminal.wait_for("round trips ");
    terminal.wait_for("several threads ");
    assert_eq!(terminal.status(), Some(0), "{}", terminal.said());
    terminal.wait_for("hand-over to a waiting client, up to");
    Ok(())
}

#[test]
fn options_that_make_no_sense_are_refused() -> TestResult {
    for wrong in [
        &["--threads", "0"][..],
        &["--threads", "1001"],
        &["--for", "soon"],
        &["report"],
    ] {
        let output = bare()
            .args(["--node", "redis://127.0.0.1:1", "bench"])
            .args(wrong)
            .output()?;
        assert_eq!(
            output.status.code(),
            Some(64),
            "{wrong:?}: {}",
            stderr(&output)
        );
    }
    Ok(())
}
