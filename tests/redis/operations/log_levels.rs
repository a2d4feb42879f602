//! The level of each line of the log, and how often it comes: what an operator has to look after is a warning, once.
//!
//! A logger is the whole process's, so each ignored test runs in a process of its own.

use devnodes::{FakeServer, Proxy, Server, Servers, eventually};

use crate::operations::log_lines::{heard, listen};
use crate::operations::secrets::answering;
use crate::support::*;

/// Lines of the log that are more than details, each returned once.
struct News {
    read: usize,
}

impl News {
    /// From the next line on.
    fn from_now() -> News {
        News {
            read: heard().len(),
        }
    }

    fn next(&mut self) -> Vec<String> {
        let mut lines = heard().split_off(self.read);
        self.read += lines.len();
        lines.retain(|line| !line.starts_with("DEBUG") && !line.starts_with("TRACE"));
        lines
    }
}

/// How many lines contain these words.
fn count(lines: &[String], words: &str) -> usize {
    lines.iter().filter(|line| line.contains(words)).count()
}

#[test]
fn a_permanent_failure_is_one_warning_despite_retries() -> TestResult {
    needs!(Settings);
    assert_passes("operations::log_levels::child_that_meets_servers_that_never_heal");
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_meets_servers_that_never_heal() {
    let Some(_) = parent_urls() else { return };
    listen();
    let server = || Server::start().unwrap();
    let secret = Server::builder().password("hunter2").start().unwrap();
    let (replica, evicts, full, access) = (server(), server(), server(), server());
    let port = evicts.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let set = |server: &Server, option, value| {
        server.command(&["CONFIG", "SET", option, value]).unwrap();
    };
    set(&evicts, "maxmemory", "1gb");
    set(&evicts, "maxmemory-policy", "allkeys-lru");
    set(&full, "maxmemory", "1");
    let cluster = Server::builder().arg("--cluster-enabled", "yes");
    let cluster = cluster.start().unwrap();
    let no_login = add_user(&access, "nobody", "~* &* +@all -eval");
    let no_keys = add_user(&access, "others", "~quorlock:* ~others:* &* +@all");
    let no_database = format!("redis://{}/99", access.addr());
    let sentinel = FakeServer::start(|conn| {
        while let Some(command) = conn.read_command() {
            let reply = match command[0].as_slice() {
                b"HELLO" => "%0\r\n",
                b"INFO" => "$23\r\nredis_mode:sentinel\r\n\r\n\r\n",
                b"ROLE" => "*2\r\n$8\r\nsentinel\r\n*0\r\n",
                _ => "-ERR unknown command\r\n",
            };
            if !conn.write(reply.as_bytes()) {
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
    let (wrong, no_password) = (
        format!("redis://:wrong@{}", secret.addr()),
        format!("redis://{}", secret.addr()),
    );
    let (down, refuses) = ("n0: down: ", "is not counted: it rejected a command: ");
    // Each server is asked again and again, and never gets a vote.
    let mut news = News::from_now();
    for (url, begin, words) in [
        (wrong, down, "login refused"),
        (no_password, down, "a password is required, and none"),
        (replica.url(), down, "a replica"),
        (cluster.url(), down, "part of a cluster"),
        (sentinel.url(), down, "a Sentinel"),
        (protected.url(), down, "in protected mode"),
        (no_login, down, "not permitted"),
        (no_database, down, "it has no such database"),
        (evicts.url(), down, "may evict locks"),
        (web.url(), down, "not a Redis answer"),
        (no_keys, "n0: ", &format!("{refuses}not permitted")),
        (full.url(), "n0: ", &format!("{refuses}out of memory")),
    ] {
        let locks = builder([url]).outage_timeout(secs(0)).build().unwrap();
        let mut failed = 0;
        eventually("it has failed often", || {
            failed += usize::from(locks.mutex("report").try_lock().is_err());
            let failures = locks.stats().connection_failures;
            3 <= failures || (10 <= failed && failures == 0)
        });
        drop(locks);

        let lines = news.next();
        let all = lines.join("\n");
        let is_expected = |line: &&String| {
            line.starts_with(&format!("WARN {begin}")) && line.contains(&format!(": {words}"))
        };
        let all = format!("{words}: {all}");
        assert_eq!(lines.iter().filter(is_expected).count(), 1, "{all}");
        // And one for the outage.
        assert_eq!(count(&lines, "no lock can be taken"), 1, "{all}");
        assert_eq!((lines.len(), count(&lines, "WARN ")), (2, 2), "{all}");
    }
    passed();
}

#[test]
fn a_missing_majority_is_one_warning_and_single_nodes_are_none() {
    assert_passes("operations::log_levels::child_without_a_majority");
}

#[test]
#[ignore = "a process of another test"]
fn child_without_a_majority() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    listen();
    let mut news = News::from_now();
    let locks = connected(builder(servers.urls()).outage_timeout(secs(0)), 3);
    // One of three is ordinary.
    servers[0].kill().unwrap();
    eventually("one is down", || {
        drop(locks.mutex("report").lock());
        1 <= count(&heard(), "n0: still down")
    });
    servers[1].kill().unwrap();
    let mut failed = 0;
    eventually("no lock can be taken, often", || {
        failed += usize::from(locks.mutex("report").try_lock().is_err());
        5 <= failed && 2 <= count(&heard(), "n1: still down")
    });
    servers[0].restart().unwrap();
    servers[1].restart().unwrap();
    eventually("both are back", || {
        drop(locks.mutex("report").try_lock());
        2 <= count(&heard(), ": up after ")
    });
    drop(lock_in_the_end(&locks, "report"));
    drop(locks);

    let lines = news.next();
    let all = lines.join("\n");
    let warning = lines.iter().find(|line| line.starts_with("WARN "));
    let warning = warning.unwrap_or_else(|| panic!("{all}"));
    assert!(
        warning.starts_with("WARN \"report\": no lock can be taken, no quorum: "),
        "{all}"
    );
    // On a busy machine neither may have been tried again by then. What stands in front of a server with TLS takes connections without it.
    let reasons = [
        "cannot connect: ",
        "connection lost: ",
        "no answer in time",
        "closed in the TLS handshake",
    ];
    assert!(reasons.iter().any(|it| warning.contains(it)), "{all}");
    for (words, expected) in [
        ("WARN ", 1),
        ("INFO a majority of the nodes responds again, after ", 1),
        ("INFO n0: down: ", 1),
        ("INFO n1: down: ", 1),
        ("INFO n0: up after ", 1),
        ("INFO n1: up after ", 1),
        ("ERROR ", 0),
    ] {
        assert_eq!(count(&lines, words), expected, "{words}: {all}");
    }
    passed();
}

/// As balancers close what is idle, every half a minute.
#[test]
fn closed_idle_connections_are_debug_lines_and_dead_servers_are_not() {
    assert_passes("operations::log_levels::child_with_closed_connections");
}

#[test]
#[ignore = "a process of another test"]
fn child_with_closed_connections() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    let (proxies, urls) = proxies(&servers);
    listen();
    let locks = connected(builder(urls), 3);
    let mut news = News::from_now();
    for round in 1..=3 {
        eventually("nothing is under way", || {
            let seen = locks.mutex("report").inspect().unwrap();
            seen.nodes().iter().all(|it| it.stored.is_ok())
        });
        proxies.iter().for_each(Proxy::cut);
        eventually("the log has them all", || {
            count(&heard(), ": connection lost: ") == 3 * round
        });
    }
    assert_eq!(news.next(), [""; 0]);

    proxies[0].refuse(true);
    proxies[0].cut();
    eventually("it is tried again", || {
        1 <= count(&heard(), "n0: still down")
    });
    let gone = news.next();
    assert!(gone[0].starts_with("INFO n0: down: "), "{gone:?}");
    assert_eq!(gone.len(), 1, "{gone:?}");
    drop(locks);
    passed();
}

#[test]
fn a_failed_extension_is_one_warning_until_the_next_one_succeeds() {
    assert_passes("operations::log_levels::child_that_cannot_extend");
}

#[test]
#[ignore = "a process of another test"]
fn child_that_cannot_extend() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    listen();
    let locks = connected(impatient(servers.urls()), 3);
    let guard = locks.mutex("report").lock().unwrap();
    let mut news = News::from_now();
    for turn in 0..2 {
        (0..2).for_each(|it| servers[it].pause().unwrap());
        let fail = || assert!(guard.extend(LONG).is_err() && guard.is_valid());
        let warnings = || count(&heard(), "WARN \"report\": not extended");
        let before = warnings();
        eventually("the log warns, once a second at most", || {
            fail();
            before < warnings()
        });
        (0..3).for_each(|_| fail());
        let lines = news.next();
        let warnings: Vec<_> = lines.iter().filter(|it| it.starts_with("WARN ")).collect();
        let [warning] = warnings[..] else {
            panic!("{lines:?}")
        };
        assert!(
            warning.starts_with("WARN \"report\": not extended, ")
                && warning.contains(" min left, "),
            "{lines:?}"
        );
        let again = "INFO \"report\": extended again in ";
        assert_eq!(count(&lines, again), 0, "{lines:?}");

        (0..2).for_each(|it| servers[it].resume().unwrap());
        eventually("it is extended", || guard.extend(LONG).is_ok());
        // Another thread writes the log.
        eventually("the log has that", || turn < count(&heard(), again));
        let lines = news.next();
        assert_eq!(count(&lines, again), 1, "{lines:?}");
        assert_eq!(count(&lines, "WARN "), 0, "{lines:?}");
    }
    drop((guard, locks));
    passed();
}

#[test]
fn many_failed_extensions_are_one_warning_a_second_with_their_number() {
    assert_passes("operations::log_levels::child_that_cannot_extend_many");
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
    let mut news = News::from_now();
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
    let lines = news.next();
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();

    let all = lines.join("\n");
    let warnings: Vec<_> = lines.iter().filter(|it| it.starts_with("WARN ")).collect();
    assert!(
        warnings[0].contains(": not extended, "),
        "the first, of which nobody else is known yet: {all}"
    );
    let counted = "WARN 20 locks not extended, the first (\"short\") ends in ";
    let line = warnings.iter().find(|it| it.starts_with(counted));
    let line = line.unwrap_or_else(|| panic!("{all}"));
    for reason in ["n0 (", "n1 (", "): not responding"] {
        assert!(line.contains(reason), "{all}");
    }
    assert!(warnings.len() <= 1 + seconds, "{seconds} s: {all}");
    (0..2).for_each(|it| servers[it].resume().unwrap());
    drop((guards, locks));
    passed();
}

#[test]
fn ordinary_work_logs_no_info_line() {
    assert_passes("operations::log_levels::child_that_works");
}

#[test]
#[ignore = "a process of another test"]
fn child_that_works() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    listen();
    let mut news = News::from_now();
    let locks = connected(builder(servers.urls()), 3);
    let guard = locks.mutex("report").lock().unwrap();
    assert_held(&locks.mutex("report").try_lock().unwrap_err());
    guard.extend(LONG).unwrap();
    guard.release().unwrap();
    drop(locks.mutex("report").lock().unwrap());
    assert!(locks.check_nodes().iter().all(|it| it.failure.is_none()));
    locks.shutdown();
    assert!(locks.mutex("report").lock().is_err());
    drop(locks);
    assert!(!heard().is_empty());
    assert_eq!(news.next(), [""; 0]);
    passed();
}

#[test]
fn a_quarantined_node_is_logged_once() {
    assert_passes("operations::log_levels::child_with_emptied_servers");
}

#[test]
#[ignore = "a process of another test"]
fn child_with_emptied_servers() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    set_all(&servers, RECORD, "0");
    let locks = with_quarantine(servers.urls(), secs(2)).build().unwrap();
    // Waits until the start of the servers is long enough ago.
    let votes = || locks.check_nodes().iter().all(|it| it.failure.is_none());
    eventually("all of them vote", votes);
    listen();
    let mut news = News::from_now();
    for server in &servers {
        server.command(&["FLUSHALL"]).unwrap();
    }
    drop(locks.mutex("report").lock().unwrap());
    assert!(
        1 < locks.stats().rounds_without_quorum,
        "it was asked more than once"
    );
    drop(locks);

    let lines = news.next();
    let all = lines.join("\n");
    let outage = "WARN \"report\": no lock can be taken, no quorum: ";
    assert_eq!(count(&lines, outage), 1, "{all}");
    let is_quarantine = |line: &&String| line.contains(": quarantined for ");
    let quarantines: Vec<_> = lines.iter().filter(is_quarantine).collect();
    for node in 0..3 {
        let begin = format!("INFO n{node}: ");
        let of_node = quarantines.iter().filter(|it| it.starts_with(&begin));
        assert!(of_node.count() <= 1, "{all}");
    }
    let reason = ": no lock data, so the server is new ";
    assert!(quarantines.iter().all(|it| it.contains(reason)), "{all}");
    assert!(2 <= quarantines.len(), "a majority was in the way: {all}");
    passed();
}
