//! `quorlock doctor` and `quorlock vouch`.

use std::process::{Command, Stdio};
use std::time::Duration;

use devnodes::{Clock, Cluster, FakeServer, Group, Proxy, Server, Servers, eventually};
use quorlock::LockManager;
use serde_json::Value;

use crate::schema::assert_form;
use crate::support::*;

fn looks(command: &mut Command) -> (i32, Value) {
    looks_with(command, &[])
}

fn looks_with(command: &mut Command, options: &[&str]) -> (i32, Value) {
    let output = command
        .args(["doctor", "--json", "--looks", "2"])
        .args(options)
        .output()
        .unwrap();
    let json =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (output.status.code().unwrap(), json)
}

/// What was found: the level, what it is, and at which node.
fn found(json: &Value) -> Vec<(String, String, Option<String>)> {
    let text = |it: &Value| it.as_str().map(str::to_owned);
    let findings = json["findings"].as_array().unwrap().iter();
    let found: Vec<_> = findings
        .map(|it| {
            (
                text(&it["level"]).unwrap(),
                text(&it["what"]).unwrap(),
                text(&it["node"]),
            )
        })
        .collect();
    for it in json["findings"].as_array().unwrap() {
        assert!(
            ["seen", "why", "do"]
                .iter()
                .all(|part| !it[part].as_str().unwrap().is_empty()),
            "{it}"
        );
    }
    found
}

#[track_caller]
fn assert_finds(json: &Value, level: &str, what: &str, node: Option<&str>) {
    let expected = (level.to_owned(), what.to_owned(), node.map(str::to_owned));
    assert!(
        found(json).contains(&expected),
        "{expected:?} is not in {:?}",
        found(json)
    );
}

/// Servers that keep what they store, and that are known to be new.
pub(crate) fn fit() -> Result<Servers, Box<dyn std::error::Error>> {
    // By default the last writes can be lost while a disk is busy.
    let servers = Servers::start_with(3, |it| it.appendonly().arg("--appendfsync", "always"))?;
    vouch_for(&servers)?;
    Ok(servers)
}

fn vouch_for(servers: &Servers) -> TestResult {
    let output = with_quarantine(servers).args(["vouch", "--yes"]).output()?;
    assert!(
        output.status.success(),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    Ok(())
}

/// On a busy machine no answer is slow.
pub(crate) fn with_quarantine(servers: &Servers) -> Command {
    let mut command = quorlock(servers);
    command
        .env_remove("QUORLOCK_NO_QUARANTINE")
        .env("QUORLOCK_MAX_TTL", "10m")
        .env("QUORLOCK_RESPONSE_TIMEOUT", "60");
    command
}

#[test]
fn three_servers_without_faults_are_fit() -> TestResult {
    let servers = fit()?;
    let (status, json) = looks(&mut with_quarantine(&servers));
    assert_eq!(
        (status, &json["quorlock"], &json["status"]),
        (0, &1.into(), &0.into()),
        "{json}"
    );
    assert_eq!(found(&json), []);
    for node in json["nodes"].as_array().unwrap() {
        assert!(
            node["votes"] == true && node["slowest_answer"].as_f64().is_some_and(|it| 0.0 < it),
            "{node}"
        );
        assert!(
            node["version"].as_str().is_some_and(|it| it.contains(' ')),
            "{node}"
        );
    }
    let text = with_quarantine(&servers)
        .args(["doctor", "--looks", "1"])
        .output()?;
    assert!(
        text.status.success() && stdout(&text).ends_with("These servers are fit for locks.\n"),
        "{}",
        stdout(&text)
    );
    Ok(())
}

#[test]
fn doctor_notes_missing_persistence_and_warns_without_quarantine() -> TestResult {
    let servers = Servers::start(3)?;
    let (status, json) = looks(with_quarantine(&servers).env("QUORLOCK_NO_QUARANTINE", "true"));
    assert_eq!((status, found(&json).len()), (1, 2), "{json}");
    assert_finds(&json, "warning", "no_quarantine", None);
    assert_finds(&json, "note", "forgets", None);
    assert!(
        json["findings"]
            .to_string()
            .contains("appendonly is off on n0, n1, n2"),
        "{json}"
    );
    assert!(
        servers.iter().all(|it| it.key_count() == 0),
        "it leaves nothing behind"
    );

    vouch_for(&servers)?;
    let (status, json) = looks(&mut with_quarantine(&servers));
    assert_eq!(
        (status, found(&json).len()),
        (0, 0),
        "quarantine covers the loss: {json}"
    );
    Ok(())
}

#[test]
fn h25_commands_that_look_leave_no_key_on_new_servers() -> TestResult {
    let servers = Servers::start(3)?;
    for command in [
        &["doctor", "--looks", "2"][..],
        &["status", "report"],
        &["ls"],
    ] {
        for without in [false, true] {
            let mut look = with_quarantine(&servers);
            if without {
                look.env("QUORLOCK_NO_QUARANTINE", "true");
            }
            let output = look.args(command).output()?;
            // Most have no vote, but all have answered.
            assert!(
                matches!(output.status.code(), Some(0 | 1)),
                "{command:?}: {}{}",
                stdout(&output),
                stderr(&output)
            );
            assert!(
                servers.iter().all(|it| it.key_count() == 0),
                "{command:?} leaves something behind"
            );
        }
    }
    Ok(())
}

#[test]
fn servers_that_others_use_without_quarantine_are_unfit() -> TestResult {
    let servers = Servers::start(3)?;
    drop(patient(&servers.urls()).build()?.mutex("report").lock()?);
    eventually("all have a record", || {
        servers.iter().all(|it| it.exists("quorlock:record"))
    });
    let (status, json) = looks(&mut with_quarantine(&servers));
    assert_eq!(status, 2, "{json}");
    assert_finds(&json, "unfit", "quarantine_differs", Some("n2"));
    assert!(
        json["findings"].to_string().contains("--no-quarantine"),
        "{json}"
    );

    let servers = fit()?;
    let (status, json) = looks(with_quarantine(&servers).env("QUORLOCK_NO_QUARANTINE", "true"));
    assert_eq!(status, 2, "{json}");
    assert_finds(&json, "unfit", "quarantine_differs", Some("n0"));
    Ok(())
}

#[test]
fn a_longer_max_ttl_is_unfit_until_it_is_raised_on_all_servers() -> TestResult {
    let servers = fit()?;
    let hour = || {
        let mut command = with_quarantine(&servers);
        command.env("QUORLOCK_MAX_TTL", "1h");
        command
    };
    // A variable raises nothing.
    for _ in 0..2 {
        let (status, json) = looks(&mut hour());
        assert_eq!(status, 2, "{json}");
        assert_finds(&json, "unfit", "max_ttl", Some("n0"));
        let advice = "raise it on all servers: quorlock doctor --max-ttl 3600s";
        assert!(json["findings"].to_string().contains(advice), "{json}");
    }
    let raise = || {
        let args = ["doctor", "--json", "--max-ttl", "1h"];
        let output = with_quarantine(&servers).args(args).output().unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_form(&json, "max_ttl");
        (output.status.code(), json["max_ttl"].as_f64())
    };
    servers[2].kill()?;
    assert_eq!(raise().0, Some(69));
    servers[2].restart()?;
    // Its quarantine begins with the next use.
    assert_eq!(raise(), (Some(0), Some(3_600.0)));

    let (_, json) = looks(&mut hour());
    assert!(!json["findings"].to_string().contains("max_ttl"), "{json}");
    let (_, json) = looks(&mut with_quarantine(&servers));
    assert!(!json["findings"].to_string().contains("max_ttl"), "{json}");
    Ok(())
}

#[test]
fn doctor_names_keys_without_expiry_unless_disabled() -> TestResult {
    let servers = fit()?;
    let locks = patient(&servers.urls()).quarantine(true).build()?;
    eventually("all can be asked", || {
        locks.check_nodes().iter().all(|it| it.failure.is_none())
    });
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        let guard = locks.mutex(name).lock()?;
        eventually("it is on all nodes", || servers.holders(name) == 3);
        drop(guard);
        servers.wait_until_free(name)?;
        servers[0].command(&["SET", name, "x"])?;
    }
    let (status, json) = looks(&mut with_quarantine(&servers));
    assert_eq!((status, found(&json).len()), (1, 1), "{json}");
    assert_finds(&json, "warning", "no_expiry", None);
    assert!(
        json["findings"][0]["seen"]
            .as_str()
            .is_some_and(|it| it.ends_with(": a, b, c, d, e, and 2 more")),
        "{json}"
    );
    let (status, json) = looks_with(&mut with_quarantine(&servers), &["--no-keys"]);
    assert_eq!((status, found(&json)), (0, Vec::new()), "{json}");
    Ok(())
}

/// Servers of one machine agree with each other, and may all be wrong.
#[test]
fn clocks_that_differ_are_a_finding_that_calls_none_of_them_wrong() -> TestResult {
    if !Clock::available() {
        return Ok(());
    }
    let servers = Servers::start_with(2, |it| it.stepped_clock())?;
    for server in &servers {
        server.step_clock_forward(Duration::from_secs(300))?;
    }

    let json = looks(&mut quorlock(&servers)).1;

    assert_finds(&json, "warning", "clock_differs", Some("n0"));
    assert_finds(&json, "warning", "clock_differs", Some("n1"));
    assert!(!json.to_string().contains("wrong"), "{json}");
    Ok(())
}

#[test]
fn a_quarantine_of_our_own_connection_is_not_shown() -> TestResult {
    let servers = fit()?;
    let user = [
        "ACL", "SETUSER", "locks", "on", ">pw", "~*", "&*", "+@all", "-info",
    ];
    servers[0].command(&user)?;
    let mut urls = servers.urls();
    urls[0] = format!("redis://locks:pw@{}", servers[0].addr());
    let mut doctor = quorlock_at(&urls);
    doctor.env_remove("QUORLOCK_NO_QUARANTINE");
    let (status, json) = looks(&mut doctor);
    let expected = (
        "warning".to_owned(),
        "unverifiable".to_owned(),
        Some("n0".to_owned()),
    );
    assert_eq!((status, found(&json)), (1, vec![expected]), "{json}");
    assert_eq!(json["nodes"][0]["votes"], true, "{json}");
    Ok(())
}

#[test]
fn failed_or_new_servers_are_warnings_while_a_majority_is_left() -> TestResult {
    let servers = fit()?;
    servers[0].kill()?;
    let (status, json) = looks(&mut with_quarantine(&servers));
    assert_eq!((status, found(&json).len()), (1, 1), "{json}");
    assert_finds(&json, "warning", "down", Some("n0"));
    servers[1].kill()?;
    let (status, json) = looks(&mut with_quarantine(&servers));
    assert_eq!(status, 2);
    assert_finds(&json, "unfit", "no_majority", None);

    let servers = Servers::start(3)?;
    let (status, json) = looks(with_quarantine(&servers).env("QUORLOCK_MAX_TTL", "1h"));
    assert_eq!(status, 1, "{json}");
    assert_finds(&json, "warning", "quarantined", Some("n2"));
    assert_finds(&json, "warning", "no_majority_yet", None);
    let text = stdout(
        &with_quarantine(&servers)
            .args(["doctor", "--looks", "1"])
            .env("QUORLOCK_MAX_TTL", "1h")
            .output()?,
    );
    assert_eq!(
        text.matches("no vote for another").count(),
        1,
        "equal findings of several servers are one: {text}"
    );
    assert!(
        json["findings"].to_string().contains("quorlock vouch"),
        "{json}"
    );

    // One that was restarted is not new, and nobody is told to vouch for it.
    let servers = fit()?;
    servers[0].restart()?;
    let (status, json) = looks(&mut with_quarantine(&servers));
    assert_eq!((status, found(&json).len()), (1, 1), "{json}");
    assert_finds(&json, "warning", "quarantined", Some("n0"));
    assert!(
        !json["findings"].to_string().contains("quorlock vouch"),
        "{json}"
    );
    Ok(())
}

#[test]
fn nodes_without_a_primary_get_a_remedy() -> TestResult {
    let (servers, part) = (
        Servers::start(2)?,
        Server::builder().arg("--cluster-enabled", "yes").start()?,
    );
    let watched = Group::builder(0).sentinels(3).start()?;
    let cluster = Cluster::builder(3).partial().start()?;
    cluster.drop_slot(cluster.slot_of("locks"))?;
    let [one, other] = [0, 1].map(|it: usize| servers[it].addr());
    let urls = [
        format!("redis+replicated://{one},{other}"),
        "redis+sentinel://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/locks".to_owned(),
        watched.sentinel_url().replace("/locks", "/others"),
        watched.sentinel_url(),
        cluster.url(),
        format!("redis+cluster://{one},127.0.0.1:1,127.0.0.1:2"),
        part.url(),
    ];

    let (status, json) = looks(quorlock_at(&urls).args(["--prefix", "{locks}:"]));

    assert_eq!(status, 2, "{json}");
    let finds = |level, what, node| assert_finds(&json, level, what, Some(node));
    finds("unfit", "unsuitable", "n0");
    finds("warning", "no_primary", "n1");
    finds("unfit", "unsuitable", "n2");
    assert!(!found(&json).iter().any(|it| it.2.as_deref() == Some("n3")));
    finds("unfit", "no_slots_served", "n4");
    finds("unfit", "unsuitable", "n5");
    finds("unfit", "unsuitable", "n6");
    let of = |node| {
        let mut findings = json["findings"].as_array().unwrap().iter();
        findings.find(|it| it["node"] == node).unwrap().to_string()
    };
    assert!(of("n1").contains("127.0.0.1:1: cannot connect"), "{json}");
    assert!(of("n6").contains("redis+cluster://"), "{json}");
    Ok(())
}

#[test]
fn doctor_has_a_remedy_for_each_bad_server() -> TestResult {
    let fresh = Server::start;
    let (fine, promoted, would_evict, evicts, has_replica) =
        (fresh()?, fresh()?, fresh()?, fresh()?, fresh()?);
    let (unverifiable, replica, few, with_password) = (
        fresh()?,
        fresh()?,
        fresh()?,
        Server::builder().password("hunter2").start()?,
    );
    for (server, master) in [(&promoted, &has_replica), (&replica, &has_replica)] {
        master.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"])?;
        server.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])?;
        eventually("it is a replica", || {
            server.info("master_link_status").as_deref() == Some("up")
        });
    }
    promoted.command(&["REPLICAOF", "NO", "ONE"])?;
    eventually("it has left", || {
        has_replica.info("connected_slaves").as_deref() == Some("1")
    });
    for server in [&would_evict, &evicts] {
        server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])?;
    }
    evicts.command(&["CONFIG", "SET", "maxmemory", "100mb"])?;
    unverifiable.command(&[
        "ACL", "SETUSER", "locks", "on", ">pw", "~*", "&*", "+@all", "-info", "-scan",
    ])?;
    few.command(&[
        "ACL", "SETUSER", "locks", "on", ">pw", "~*", "&*", "+@all", "-set",
    ])?;
    let (garbage, double) = (FakeServer::garbage()?, Proxy::start(fine.addr())?);
    let ahead = Clock::available()
        .then(|| Server::builder().stepped_clock().start())
        .transpose()?;
    let mut urls: Vec<_> = [
        &fine,
        &promoted,
        &would_evict,
        &evicts,
        &has_replica,
        &replica,
    ]
    .map(Server::url)
    .into();
    urls.extend([
        format!("redis://locks:pw@{}", unverifiable.addr()),
        format!("redis://locks:pw@{}", few.addr()),
    ]);
    urls.push(format!("redis://:hunter3@{}", with_password.addr()));
    urls.extend([garbage.url(), double.url()]);
    if let Some(ahead) = &ahead {
        ahead.step_clock_forward(Duration::from_secs(7_200))?;
        urls.push(ahead.url());
    }

    let (status, json) = looks(&mut quorlock_at(&urls));

    assert_eq!(status, 2, "{json}");
    for (level, what, node) in [
        ("warning", "promoted", "n1"),
        ("warning", "would_evict", "n2"),
        ("unfit", "unsuitable", "n3"),
        ("warning", "has_replicas", "n4"),
        ("unfit", "replica", "n5"),
        ("warning", "unverifiable", "n6"),
        ("note", "not_listed", "n6"),
        ("unfit", "access", "n7"),
        ("unfit", "access", "n8"),
        ("unfit", "no_redis", "n9"),
    ] {
        assert_finds(&json, level, what, Some(node));
    }
    assert!(
        found(&json).iter().any(|it| it.1 == "same_server"),
        "{json}"
    );
    if ahead.is_some() {
        assert_finds(&json, "warning", "clock_differs", Some("n11"));
    }
    assert_eq!(
        (&json["nodes"][6]["votes"], &json["nodes"][7]["votes"]),
        (&true.into(), &false.into())
    );
    let text = quorlock_at(&urls)
        .args(["doctor", "--looks", "1"])
        .output()?;
    assert_eq!(text.status.code(), Some(2));
    let text = format!("{}{}{json}", stdout(&text), stderr(&text));
    assert!(
        text.contains("NOT fit") && text.contains("see the ACL line in the guide"),
        "{text}"
    );
    assert!(!text.contains("hunter") && !text.contains(":pw"), "{text}");
    Ok(())
}

/// A server that answers its first commands like this, and the rest with an error.
fn answering(answers: &'static [(&'static str, &'static str)]) -> FakeServer {
    let serve = |conn: &mut devnodes::FakeConn| {
        while let Some(command) = conn.read_command() {
            let known = answers
                .iter()
                .find(|(name, _)| name.as_bytes() == command[0]);
            let answer = known.map_or("-ERR unknown command", |(_, answer)| answer);
            if !conn.write(format!("{answer}\r\n").as_bytes()) {
                return;
            }
        }
    };
    FakeServer::start(serve).unwrap()
}

#[test]
fn doctor_separates_further_kinds_of_unfit_servers() -> TestResult {
    let fresh = Server::start;
    let (full, wants_replicas, database, stopped) = (fresh()?, fresh()?, fresh()?, fresh()?);
    let cluster = Server::builder().arg("--cluster-enabled", "yes").start()?;
    full.command(&["CONFIG", "SET", "maxmemory", "1"])?;
    wants_replicas.command(&["CONFIG", "SET", "min-replicas-to-write", "1"])?;
    stopped.pause()?;
    let (redis, info) = ("%0", "$23\r\nredis_mode:sentinel\r\n\r\n");
    let sentinel: &'static [_] = Box::leak(Box::new([
        ("HELLO", redis),
        ("INFO", info),
        ("ROLE", "*1\r\n$8\r\nsentinel"),
    ]));
    let fakes = [
        answering(sentinel),
        answering(&[
            ("HELLO", "%0"),
            ("INFO", "$24\r\nredis_version:5.0.14\r\n\r\n"),
            ("ROLE", "*1\r\n$6\r\nmaster"),
        ]),
        answering(&[(
            "HELLO",
            "-DENIED Redis is running in protected mode because no password is set.",
        )]),
        answering(&[("HELLO", "-LOADING Redis is loading the dataset in memory")]),
        answering(&[("HELLO", "-BUSY Redis is busy running a script.")]),
        answering(&[("HELLO", "-ERR max number of clients reached")]),
        answering(&[
            ("HELLO", "%0"),
            ("INFO", "$25\r\ngarnet_version:1.0.93\r\n\r\n"),
        ]),
        answering(&[
            ("HELLO", "%0"),
            ("INFO", "$23\r\nrole:active-replica\r\n\r\n"),
        ]),
    ];
    let mut urls: Vec<_> = [&full, &wants_replicas, &stopped, &cluster]
        .map(Server::url)
        .into();
    urls.push(format!("{}/99", database.url()));
    urls.extend(fakes.iter().map(FakeServer::url));
    // It knows no HELLO, and so announces nothing. The other option makes the number of words even.
    let limit = ["--client-output-buffer-limit", "normal", "0", "0", "0"];
    let silent = Server::builder()
        .arg("--rename-command", "HELLO")
        .arg("", limit[0])
        .arg(limit[1], limit[2]);
    let silent = silent.arg(limit[3], limit[4]).start()?;
    urls.push(silent.url());
    let mut command = quorlock_at(&urls);
    command.env("QUORLOCK_CONNECT_TIMEOUT", "2");

    let (status, json) = looks(&mut command);

    assert_eq!(status, 2, "{json}");
    for (level, what, node) in [
        ("unfit", "writes_refused", "n0"),
        ("unfit", "writes_refused", "n1"),
        ("warning", "down", "n2"),
        ("unfit", "unsuitable", "n3"),
        ("unfit", "unsuitable", "n4"),
        ("unfit", "unsuitable", "n5"),
        ("unfit", "unsuitable", "n6"),
        ("unfit", "access", "n7"),
        ("warning", "loading", "n8"),
        ("warning", "busy", "n9"),
        ("warning", "busy", "n10"),
        ("unfit", "unsuitable", "n11"),
        ("unfit", "unsuitable", "n12"),
        ("warning", "no_notices", "n13"),
    ] {
        assert_finds(&json, level, what, Some(node));
    }
    for (node, words) in [
        ("n0", "out of memory"),
        ("n3", "part of a cluster"),
        ("n4", "it has no such database"),
        ("n5", "a Sentinel"),
        ("n6", "Redis "),
        ("n7", "in protected mode"),
        ("n9", "busy with a long script"),
        ("n10", "too many clients"),
        ("n11", "Garnet "),
        ("n12", "an active replica"),
    ] {
        let begins = |it: &Value| {
            it["node"] == node && it["seen"].as_str().is_some_and(|it| it.starts_with(words))
        };
        assert!(
            json["findings"].as_array().unwrap().iter().any(begins),
            "{node}: {words}: {json}"
        );
    }
    // Servers that refuse writes answer questions all the same.
    let votes: Vec<_> = json["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["votes"] == true)
        .collect();
    assert_eq!(
        votes,
        (0..14).map(|node| node == 13).collect::<Vec<_>>(),
        "{json}"
    );
    stopped.resume()?;
    Ok(())
}

#[test]
fn servers_that_others_use_in_another_set_are_found() -> TestResult {
    let servers = Servers::start(5)?;
    for server in &servers {
        server.command(&["SET", "quorlock:record", "0"])?;
    }
    let all = LockManager::builder(servers.urls())
        .response_timeout(Duration::from_secs(2))
        .build()?;
    // A look notes nothing.
    drop(all.mutex("report").lock()?);
    eventually("all have been met", || {
        all.check_nodes().iter().all(|it| it.round_trip.is_some())
    });
    let (_, json) = looks(quorlock_at(&servers.urls()[..3]).env_remove("QUORLOCK_NO_QUARANTINE"));
    assert_finds(&json, "warning", "other_nodes", Some("n0"));
    Ok(())
}

#[test]
fn a_server_that_is_far_away_gets_a_proposal_for_the_response_timeout() -> TestResult {
    let servers = Servers::start(3)?;
    let proxy = Proxy::start(servers[0].addr())?;
    proxy.set_delay(Duration::from_millis(300));
    let urls = [proxy.url(), servers[1].url(), servers[2].url()];
    let mut command = quorlock_at(&urls);
    let (status, json) = looks(command.env("QUORLOCK_RESPONSE_TIMEOUT", "1"));
    assert_eq!(status, 1, "{json}");
    assert_finds(&json, "warning", "slow", Some("n0"));
    assert!(
        json["proposed_response_timeout"]
            .as_f64()
            .is_some_and(|it| 3.0 <= it),
        "{json}"
    );
    let (_, json) = looks(quorlock_at(&urls).env("QUORLOCK_RESPONSE_TIMEOUT", "60"));
    assert!(json["proposed_response_timeout"].is_null(), "{json}");
    Ok(())
}

#[test]
fn doctor_warns_of_one_node_and_of_an_even_number() -> TestResult {
    let servers = Servers::start(2)?;
    let (status, json) = looks(&mut quorlock(&servers));
    assert_eq!(status, 1);
    assert_finds(&json, "warning", "even_nodes", None);
    let (status, json) = looks(&mut quorlock_at(&[servers[0].url()]));
    assert_eq!(status, 1);
    assert_finds(&json, "warning", "one_node", None);
    Ok(())
}

#[test]
fn vouch_shows_the_risk_asks_and_admits_new_servers_only() -> TestResult {
    let servers = Servers::start(3)?;
    let vouch = || {
        let mut command = quorlock(&servers);
        command.env_remove("QUORLOCK_NO_QUARANTINE").arg("vouch");
        command
    };
    assert_eq!(
        vouch().stdin(Stdio::null()).output()?.status.code(),
        Some(64)
    );
    let mut terminal = Terminal::start(&mut vouch());
    terminal.wait_for("Are they new? [y/N] ");
    assert!(
        terminal.said().contains("two can hold a lock"),
        "{}",
        terminal.said()
    );
    terminal.tell("n");
    assert_eq!(terminal.status(), Some(1));

    let output = vouch().arg("--yes").output()?;
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(text.matches(": votes").count(), 3, "{text}");
    // Nobody is asked where nothing is new.
    let again = vouch().args(["--yes"]).output()?;
    assert!(
        again.status.success() && stdout(&again).matches(": votes").count() == 3,
        "{}",
        stdout(&again)
    );
    servers[0].command(&["FLUSHALL"])?;
    servers[0].command(&[
        "SET",
        "quorlock:record",
        "000000000000001 0000000000000001 0000003600000001 1 x old 7",
    ])?;
    let after = vouch().args(["--yes", "--max-ttl", "1h"]).output()?;
    assert_eq!(after.status.code(), Some(69), "{}", stdout(&after));
    Ok(())
}
