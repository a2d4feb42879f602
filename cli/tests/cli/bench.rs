//! `quorlock bench`.

use std::process::Output;

use devnodes::Servers;

use crate::support::*;

fn bench(servers: &Servers, args: &[&str]) -> std::io::Result<Output> {
    quorlock(servers).arg("bench").args(args).output()
}

/// No lock; and counters that expire within a minute.
#[track_caller]
fn assert_only_counters_are_left(servers: &Servers) {
    for server in servers.iter().filter(|it| it.is_running()) {
        let keys = server.command(&["KEYS", "*"]).unwrap();
        for key in keys.as_array().unwrap().iter().filter_map(|it| it.as_str()) {
            let left = server.command(&["PTTL", key]).unwrap().as_int().unwrap();
            let is_counter = key.starts_with("quorlock:fence:quorlock-bench-");
            assert!(
                key == "quorlock:record" || is_counter && (1..=60_000).contains(&left),
                "{key}: {left}"
            );
        }
    }
}

#[test]
fn bench_shows_times_per_server_and_number_of_threads_and_leaves_no_lock() -> TestResult {
    let servers = Servers::start(3)?;
    let output = bench(&servers, &["--for", "400ms", "--threads", "3"])?;
    let (said, text) = (stderr(&output), stdout(&output));
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(said, "quorlock: full load for the servers for 400.0 ms\n");
    for what in [
        "trip to n0 (",
        "n1 (",
        "n2 (",
        "release, threads: 1 ",
        "release, threads: 3 ",
        "MEDIAN",
    ] {
        assert!(text.contains(what), "{what}: {text}");
    }
    assert_only_counters_are_left(&servers);
    Ok(())
}

#[test]
fn bench_measures_no_servers_in_quarantine() -> TestResult {
    let servers = Servers::start(3)?;
    let bench = || {
        let mut command = quorlock(&servers);
        command
            .env_remove("QUORLOCK_NO_QUARANTINE")
            .args(["bench", "--for", "400ms"]);
        command
    };
    let new = bench().output()?;
    assert_eq!(new.status.code(), Some(69), "{}", stdout(&new));
    assert!(stderr(&new).contains("quarantined"), "{}", stderr(&new));

    assert!(
        quorlock(&servers)
            .env_remove("QUORLOCK_NO_QUARANTINE")
            .args(["vouch", "--yes"])
            .status()?
            .success()
    );
    let vouched = bench().output()?;
    assert_eq!(vouched.status.code(), Some(0), "{}", stderr(&vouched));
    let without = bench().arg("--no-quarantine").output()?;
    assert_eq!(without.status.code(), Some(78), "{}", stdout(&without));
    assert!(
        stderr(&without).contains("enable quarantine here"),
        "{}",
        stderr(&without)
    );
    Ok(())
}

#[test]
fn bench_names_a_down_server_and_fails_without_a_majority() -> TestResult {
    let servers = Servers::start(3)?;
    servers[2].kill()?;
    let output = bench(&servers, &["--for", "200ms"])?;
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(text.contains("): cannot connect"), "{text}");
    assert_only_counters_are_left(&servers);

    servers[1].kill()?;
    let output = bench(&servers, &["--for", "200ms"])?;
    assert_eq!(output.status.code(), Some(69), "{}", stdout(&output));
    Ok(())
}

#[test]
fn bench_refuses_options_without_sense() -> TestResult {
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
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(64), "{wrong:?}: {said}");
    }
    Ok(())
}
