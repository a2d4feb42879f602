//! The level of each line of the log, and how often it comes: what an operator has to look after is a warning, once.

use std::collections::BTreeMap;

use devnodes::{FakeServer, Proxy, Server, Servers, eventually};
use quorlock::LockManager;

use crate::operations::log_lines::{heard, listen, tell, told};
use crate::operations::secrets::answering;
use crate::support::*;

/// What a child has heard, by the title under which it told it.
fn chapters(test: &str) -> BTreeMap<String, Vec<String>> {
    let mut chapters = BTreeMap::<String, Vec<String>>::new();
    let mut title = String::new();
    let name = format!("operations::log_levels::{test}");
    // Each starts servers of its own.
    let mut child = child(&name, &["none".to_owned()]);
    for line in told(&child) {
        match line.strip_prefix("# ") {
            Some(new) => {
                title = new.to_owned();
                chapters.insert(title.clone(), Vec::new());
            }
            None => chapters.get_mut(&title).unwrap().push(line),
        }
    }
    assert!(child.wait().success());
    chapters
}

/// In a child: what was heard so far that is more than a detail, under this title, and nothing of it again.
struct Teller(usize);

impl Teller {
    fn tell(&mut self, title: &str) {
        let lines = heard();
        say(format!("# {title}"));
        let loud = |it: &&String| !it.starts_with("DEBUG") && !it.starts_with("TRACE");
        lines[self.0..].iter().filter(loud).for_each(say);
        self.0 = lines.len();
    }
}

fn of(lines: &[String], level: &str) -> Vec<String> {
    lines
        .iter()
        .filter(|it| it.starts_with(&format!("{level} ")))
        .cloned()
        .collect()
}

/// What the log says of a server that never gets a vote, which is asked again and again.
const LASTING: [(&str, &str); 12] = [
    ("password", "n0: down: ADDRESS: login refused"),
    (
        "no password",
        "n0: down: ADDRESS: a password is required, and none was given",
    ),
    ("replica", "n0: down: ADDRESS: a replica"),
    ("cluster", "n0: down: ADDRESS: part of a cluster"),
    ("sentinel", "n0: down: ADDRESS: a Sentinel"),
    ("protected mode", "n0: down: ADDRESS: "),
    ("forbidden login", "n0: down: ADDRESS: not permitted"),
    ("database", "n0: down: ADDRESS: it has no such database"),
    ("evicts", "n0: down: ADDRESS: may evict locks"),
    ("no Redis", "n0: down: ADDRESS: not a Redis answer"),
    (
        "forbidden key",
        "n0: ADDRESS: is not counted: it rejected a command: not permitted",
    ),
    (
        "no writes",
        "n0: ADDRESS: is not counted: it rejected a command: out of memory",
    ),
];

#[test]
fn what_never_heals_by_itself_is_a_warning_once_however_often_it_is_tried_again() -> TestResult {
    needs!(Settings);
    let chapters = chapters("child_that_meets_servers_that_never_heal");

    for (case, expected) in LASTING {
        let lines = &chapters[case];
        let all = lines.join("\n");
        let warnings: Vec<_> = of(lines, "WARN")
            .into_iter()
            .filter(|it| !it.contains("no lock can be taken"))
            .collect();
        assert_eq!(warnings.len(), 1, "{case}: {all}");
        let (before, after) = expected.split_once("ADDRESS").unwrap();
        assert!(
            warnings[0].starts_with(&format!("WARN {before}")),
            "{case}: {all}"
        );
        assert!(warnings[0].contains(after), "{case}: {all}");
        assert!(of(lines, "INFO").is_empty(), "{case}: {all}");
        assert!(of(lines, "ERROR").is_empty(), "{case}: {all}");
        assert_eq!(
            of(lines, "WARN").len(),
            2,
            "and one for the outage: {case}: {all}"
        );
    }
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_meets_servers_that_never_heal() {
    let Some(_) = parent_urls() else { return };
    listen();
    let server = || Server::start().unwrap();
    let secret = Server::builder().password("hunter2").start().unwrap();
    let (replica, evicts, full) = (server(), server(), server());
    replica
        .command(&["REPLICAOF", "127.0.0.1", &evicts.port().to_string()])
        .unwrap();
    evicts
        .command(&["CONFIG", "SET", "maxmemory", "1gb"])
        .unwrap();
    evicts
        .command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .unwrap();
    full.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let cluster = Server::builder()
        .arg("--cluster-enabled", "yes")
        .start()
        .unwrap();
    let access = server();
    let no_login = add_user(&access, "nobody", "~* &* +@all -script");
    let no_keys = add_user(&access, "others", "~quorlock:* ~others:* &* +@all");
    let sentinel = FakeServer::start(|conn| {
        while let Some(command) = conn.read_command() {
            let reply = match command[0].as_slice() {
                b"INFO" => "$23\r\nredis_mode:sentinel\r\n\r\n\r\n",
                b"ROLE" => "*2\r\n$8\r\nsentinel\r\n*0\r\n",
                _ => "-ERR unknown command\r\n",
            };
            if !conn.write(if command[0] == b"HELLO" {
                b"%0\r\n"
            } else {
                reply.as_bytes()
            }) {
                return;
            }
        }
    })
    .unwrap();
    let protected = answering(&[(
        "HELLO",
        "-DENIED Redis is running in protected mode because no password is set.",
    )]);
    let web = answering(&[("HELLO", "HTTP/1.1 400 Bad Request")]);
    let urls = [
        ("password", format!("redis://:wrong@{}", secret.addr())),
        ("no password", format!("redis://{}", secret.addr())),
        ("replica", replica.url()),
        ("cluster", cluster.url()),
        ("sentinel", sentinel.url()),
        ("protected mode", protected.url()),
        ("forbidden login", no_login),
        ("database", format!("redis://{}/99", access.addr())),
        ("evicts", evicts.url()),
        ("no Redis", web.url()),
        ("forbidden key", no_keys),
        ("no writes", full.url()),
    ];
    let mut teller = Teller(0);
    for (case, url) in urls {
        let locks = builder([url]).outage_timeout(secs(0)).build().unwrap();
        let mut failed = 0;
        eventually("it has failed often", || {
            failed += usize::from(locks.mutex("report").try_lock().is_err());
            3 <= locks.stats().connection_failures
                || (10 <= failed && locks.stats().connection_failures == 0)
        });
        drop(locks);
        teller.tell(case);
    }
    tell([]);
}

#[test]
fn no_majority_is_a_warning_once_with_its_reasons_and_its_end_and_nodes_that_come_and_go_are_none()
-> TestResult {
    let chapters = chapters("child_without_a_majority");

    let lines = &chapters["all"];
    let all = lines.join("\n");
    let warnings = of(lines, "WARN");
    assert_eq!(warnings.len(), 1, "{all}");
    assert!(
        warnings[0].starts_with("WARN \"report\": no lock can be taken, no quorum: "),
        "{all}"
    );
    // On a busy machine neither may have been tried again by then. What stands in front of a server with TLS takes connections without it.
    let reasons = [
        "cannot connect: ",
        "connection lost: ",
        "no answer in time",
        "closed in the TLS handshake",
    ];
    assert!(reasons.iter().any(|it| warnings[0].contains(it)), "{all}");
    let count = |what: &str| {
        of(lines, "INFO")
            .iter()
            .filter(|it| it.contains(what))
            .count()
    };
    assert_eq!(
        count("INFO a majority of the nodes responds again, after "),
        1,
        "{all}"
    );
    assert_eq!(
        (count("INFO n0: down: "), count("INFO n1: down: ")),
        (1, 1),
        "{all}"
    );
    assert_eq!(
        (count("INFO n0: up after "), count("INFO n1: up after ")),
        (1, 1),
        "{all}"
    );
    assert!(of(lines, "ERROR").is_empty(), "{all}");
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_without_a_majority() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    listen();
    let locks = connected(builder(servers.urls()).outage_timeout(secs(0)), 3);
    // One of three is ordinary.
    servers[0].kill().unwrap();
    eventually("one is down", || {
        heard().iter().any(|it| it.contains("n0: still down")) || {
            drop(locks.mutex("report").lock());
            false
        }
    });
    servers[1].kill().unwrap();
    let mut failed = 0;
    eventually("no lock can be taken, often", || {
        failed += usize::from(locks.mutex("report").try_lock().is_err());
        5 <= failed
            && 2 <= heard()
                .iter()
                .filter(|it| it.contains("n1: still down"))
                .count()
    });
    servers[0].restart().unwrap();
    servers[1].restart().unwrap();
    eventually("both are back", || {
        drop(locks.mutex("report").try_lock());
        2 <= heard()
            .iter()
            .filter(|it| it.contains(": up after "))
            .count()
    });
    drop(lock_in_the_end(&locks, "report"));
    drop(locks);
    assert!(!heard().is_empty());
    Teller(0).tell("all");
    tell([]);
}

/// As balancers close what is idle, every half a minute.
#[test]
fn idle_connections_that_are_closed_are_details_and_a_server_that_is_gone_is_none() -> TestResult {
    let chapters = chapters("child_whose_connections_are_closed");

    let all = chapters["closed"].join("\n");
    assert!(chapters["closed"].is_empty(), "{all}");
    let gone = &chapters["gone"];
    let all = gone.join("\n");
    assert_eq!(gone.len(), 1, "{all}");
    assert!(gone[0].starts_with("INFO n0: down: "), "{all}");
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_whose_connections_are_closed() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    let (proxies, urls) = proxies(&servers);
    listen();
    let locks = connected(builder(urls), 3);
    let mut teller = Teller(heard().len());
    let closed = || {
        heard()
            .iter()
            .filter(|it| it.contains(": connection lost: "))
            .count()
    };
    for round in 1..=3 {
        eventually("nothing is under way", || {
            let seen = locks.mutex("report").inspect().unwrap();
            seen.nodes().iter().all(|it| it.stored.is_ok())
        });
        proxies.iter().for_each(Proxy::cut);
        eventually("the log has them all", || closed() == 3 * round);
    }
    teller.tell("closed");
    proxies[0].refuse(true);
    proxies[0].cut();
    eventually("it is tried again", || {
        heard().iter().any(|it| it.contains("n0: still down"))
    });
    teller.tell("gone");
    drop(locks);
    tell([]);
}

#[test]
fn an_extension_that_fails_is_a_warning_once_with_the_time_that_is_left_until_one_succeeds()
-> TestResult {
    let chapters = chapters("child_that_cannot_extend");

    for (chapter, warned) in [("fails", 1), ("succeeds", 0), ("fails again", 1)] {
        let lines = &chapters[chapter];
        let all = lines.join("\n");
        let warnings = of(lines, "WARN");
        assert_eq!(warnings.len(), warned, "{chapter}: {all}");
        for warning in warnings {
            assert!(
                warning.starts_with("WARN \"report\": not extended, ")
                    && warning.contains(" min left, "),
                "{all}"
            );
        }
        let again = of(lines, "INFO")
            .iter()
            .filter(|it| it.starts_with("INFO \"report\": extended again in "))
            .count();
        assert_eq!(again, 1 - warned, "{chapter}: {all}");
    }
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_cannot_extend() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    listen();
    let locks = connected(impatient(servers.urls()), 3);
    let guard = locks.mutex("report").lock().unwrap();
    let mut teller = Teller(heard().len());
    for title in ["fails", "fails again"] {
        (0..2).for_each(|it| servers[it].pause().unwrap());
        let fail = || assert!(guard.extend(LONG).is_err() && guard.is_valid());
        let warnings = || {
            heard()
                .iter()
                .filter(|it| it.starts_with("WARN \"report\": not extended"))
                .count()
        };
        let before = warnings();
        eventually("the log warns, once a second at most", || {
            fail();
            before < warnings()
        });
        (0..3).for_each(|_| fail());
        teller.tell(title);
        (0..2).for_each(|it| servers[it].resume().unwrap());
        eventually("it is extended", || guard.extend(LONG).is_ok());
        if title == "fails" {
            // Another thread writes the log.
            eventually("the log says so", || {
                heard().iter().any(|it| it.contains("extended again"))
            });
            teller.tell("succeeds");
        }
    }
    drop((guard, locks));
    tell([]);
}

#[test]
fn many_locks_that_are_not_extended_are_one_warning_a_second_with_their_number_and_the_first_to_end()
-> TestResult {
    let chapters = chapters("child_that_cannot_extend_many");

    let lines = &chapters["many"];
    let all = lines.join("\n");
    let warnings = of(lines, "WARN");
    assert!(
        warnings[0].contains(": not extended, "),
        "the first, of which nobody else is known yet: {all}"
    );
    let line = warnings
        .iter()
        .find(|it| it.starts_with("WARN 20 locks not extended, the first (\"short\") ends in "));
    let line = line.unwrap_or_else(|| panic!("{all}"));
    for reason in ["n0 (", "n1 (", "): not responding"] {
        assert!(line.contains(reason), "{all}");
    }
    let seconds: usize = chapters["seconds"][0].trim_start_matches("INFO ").parse()?;
    assert!(warnings.len() <= 1 + seconds, "{seconds} s: {all}");
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_cannot_extend_many() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    listen();
    let locks = connected(impatient(servers.urls()), 3);
    let mut guards: Vec<_> = (0..19)
        .map(|it| locks.mutex(format!("order:{it}")).lock().unwrap())
        .collect();
    guards.push(locks.mutex("short").ttl(LONG / 2).lock().unwrap());
    let mut teller = Teller(heard().len());
    let began = std::time::Instant::now();
    (0..2).for_each(|it| servers[it].pause().unwrap());
    eventually("the log counts them", || {
        // What is left of `short` stays less than of any other.
        guards[..19]
            .iter()
            .for_each(|it| assert!(it.extend(LONG).is_err()));
        assert!(guards[19].extend(LONG / 2).is_err());
        heard().iter().any(|it| it.starts_with("WARN 20 locks"))
    });
    teller.tell("many");
    say("# seconds");
    say(began.elapsed().as_secs());
    (0..2).for_each(|it| servers[it].resume().unwrap());
    drop((guards, locks));
    tell([]);
}

#[test]
fn ordinary_work_and_its_end_are_no_news() -> TestResult {
    let chapters = chapters("child_that_works");

    assert_eq!(chapters["all"], [""; 0]);
    Ok(())
}

fn work(locks: &LockManager) {
    let guard = locks.mutex("report").lock().unwrap();
    assert!(locks.mutex("report").try_lock().unwrap_err().is_held());
    guard.extend(LONG).unwrap();
    guard.release().unwrap();
    drop(locks.mutex("report").lock().unwrap());
    assert!(locks.check_nodes().iter().all(|it| it.failure.is_none()));
}

#[test]
#[ignore = "a process of another test"]
fn child_that_works() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    listen();
    let locks = connected(builder(servers.urls()), 3);
    work(&locks);
    locks.shutdown();
    assert!(locks.mutex("report").lock().is_err());
    drop(locks);
    assert!(!heard().is_empty());
    Teller(0).tell("all");
    tell([]);
}

#[test]
fn a_node_that_is_silent_is_news_once_however_often_it_says_so() -> TestResult {
    let chapters = chapters("child_whose_servers_are_emptied");

    let lines = &chapters["all"];
    let all = lines.join("\n");
    assert_eq!(
        lines
            .iter()
            .filter(|it| it.starts_with("WARN \"report\": no lock can be taken for "))
            .count(),
        1,
        "{all}"
    );
    for node in 0..3 {
        let of_node = |it: &&String| {
            it.starts_with(&format!("INFO n{node}: ")) && it.contains(": quarantined for ")
        };
        let lines: Vec<_> = lines.iter().filter(of_node).collect();
        assert!(lines.len() <= 1, "{all}");
        assert!(
            lines
                .iter()
                .all(|it| it.ends_with(": it is new or lost its data")),
            "{all}"
        );
    }
    let quarantined = lines
        .iter()
        .filter(|it| it.contains(": quarantined for "))
        .count();
    assert!(2 <= quarantined, "a majority was in the way: {all}");
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_whose_servers_are_emptied() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    servers.iter().for_each(|it| set(it, RECORD, "0"));
    let locks = with_quarantine(servers.urls(), secs(2)).build().unwrap();
    // Waits until the start of the servers is long enough ago.
    let votes = || locks.check_nodes().iter().all(|it| it.failure.is_none());
    eventually("all of them vote", votes);
    listen();
    servers
        .iter()
        .for_each(|it| drop(it.command(&["FLUSHALL"]).unwrap()));
    drop(locks.mutex("report").lock().unwrap());
    assert!(
        1 < locks.stats().rounds_without_quorum,
        "it was asked more than once"
    );
    drop(locks);
    Teller(0).tell("all");
    tell([]);
}
