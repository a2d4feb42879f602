//! What the log says: changes once, and no secrets.
//!
//! A logger is the whole process's, so it is another process that listens.

use std::sync::Mutex;

use devnodes::{Server, debug_form, eventually};
use log::{LevelFilter, Log, Metadata, Record};

use crate::operations::incidents::fits;
use crate::operations::secrets;
use crate::support::*;

/// The length of quarantines here and in `clocks`: so long that none ends while a test runs.
pub(crate) const QUARANTINE: std::time::Duration = secs(600);

struct Lines(Mutex<Vec<String>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.target() == "quorlock"
            && record
                .module_path()
                .is_some_and(|it| it.starts_with("quorlock::"))
        {
            self.0
                .lock()
                .unwrap()
                .push(format!("{} {}", record.level(), record.args()));
        }
    }

    fn flush(&self) {}
}

/// In a child process: listens to the log from now on.
pub(crate) fn listen() {
    log::set_logger(&LINES).unwrap();
    log::set_max_level(LevelFilter::Trace);
}

/// What was heard so far, all of it in words. Traces are for those who change the library.
pub(crate) fn heard() -> Vec<String> {
    let lines = LINES.0.lock().unwrap().clone();
    for line in lines.iter().filter(|it| !it.starts_with("TRACE")) {
        assert_eq!(debug_form(line), None, "{line}");
    }
    lines
}

/// In a child process: tells the parent these lines, and that they were all.
pub(crate) fn tell(lines: impl IntoIterator<Item = String>) {
    lines.into_iter().for_each(say);
    say("the end");
}

/// What the child tells.
pub(crate) fn told(child: &ChildProcess) -> Vec<String> {
    let line = || Some(child.hear()).filter(|it| it != "the end");
    std::iter::from_fn(line).collect()
}

/// The warnings of [`child_that_looks_at_its_nodes`], in the order of the nodes.
pub(crate) fn warnings(child: &ChildProcess) -> Vec<String> {
    let mut lines = told(child);
    lines.sort();
    lines
}

#[test]
#[ignore = "a process of another test"]
fn child_that_looks_at_its_nodes() {
    let Some(urls) = parent_urls() else { return };
    listen();
    let locks = builder(&urls)
        .quarantine(true)
        .max_ttl(QUARANTINE)
        .build()
        .unwrap();
    let look = || {
        eventually("all nodes answer", || {
            let rows = locks.check_nodes();
            rows.iter().all(|row| row.round_trip.is_some())
        });
    };
    look();
    let mut goes_on = true;
    while goes_on {
        say("looked");
        goes_on = hear_parent().as_deref() == Some("look again");
        for _ in 0..3 {
            look();
        }
    }
    // Lines are written by a thread of their own, which ends with it.
    drop(locks);
    tell(heard().into_iter().filter(|it| it.starts_with("WARN")));
}

#[test]
fn echoed_login_data_is_in_no_error_and_no_log_line() {
    assert_passes("operations::log_lines::child_with_echoed_secrets");
}

#[test]
#[ignore = "a process of another test"]
fn child_with_echoed_secrets() {
    let Some(_) = parent_urls() else { return };
    listen();
    for answers in secrets::ECHOES {
        let fake = secrets::answering(answers);
        let url = format!("redis://zoe:hunter2@{}", fake.addr());
        let locks = builder([url]).outage_timeout(secs(0)).build().unwrap();
        let err = locks.mutex("report").lock().unwrap_err();
        assert_no_quorum(&err);
        let shown = format!("{err} {err:?} {locks:?}");
        assert!(!secrets::shows_login(&shown), "{answers:?}: {shown}");
    }
    let lines = heard();
    for line in &lines {
        assert!(!line.contains(char::is_control), "{line:?}");
        assert!(!secrets::shows_login(line), "{line}");
    }
    let down = lines.iter().filter(|it| it.contains("n0: down")).count();
    assert!(secrets::ECHOES.len() <= down, "{lines:?}");
    passed();
}

#[test]
fn a_permanent_failure_is_one_warning_despite_retries() -> TestResult {
    needs!(Settings);
    assert_passes("operations::log_lines::child_that_meets_servers_that_never_heal");
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_meets_servers_that_never_heal() {
    let Some(_) = parent_urls() else { return };
    listen();
    let server = || Server::start().unwrap();
    let secret = Server::builder().password("hunter2").start().unwrap();
    let cluster = Server::builder().arg("--cluster-enabled", "yes");
    let cluster = cluster.start().unwrap();
    let (replica, evicts, full, access) = (server(), server(), server(), server());
    let port = evicts.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    for (server, option, value) in [
        (&evicts, "maxmemory", "1gb"),
        (&evicts, "maxmemory-policy", "allkeys-lru"),
        (&full, "maxmemory", "1"),
    ] {
        server.command(&["CONFIG", "SET", option, value]).unwrap();
    }
    let wrong = format!("redis://:wrong@{}", secret.addr());
    let no_keys = add_user(&access, "others", "~quorlock:* ~others:* &* +@all");
    let no_login = add_user(&access, "nobody", "~* &* +@all -eval");
    let no_password = format!("redis://{}", secret.addr());
    let protected = secrets::answering(&[(
        "HELLO",
        "-DENIED Redis is running in protected mode because no password is set.",
    )]);
    let web = secrets::answering(&[("HELLO", "HTTP/1.1 400 Bad Request")]);
    let no_database = format!("redis://{}/99", access.addr());
    // Each server is asked again and again, and never gets a vote.
    for (url, line) in [
        (wrong, "WARN n0: down: …: login refused…"),
        (
            no_password,
            "WARN n0: down: …: a password is required, and none…",
        ),
        (no_login, "WARN n0: down: …: not permitted…"),
        (protected.url(), "WARN n0: down: …: in protected mode…"),
        (web.url(), "WARN n0: down: …: not a Redis answer…"),
        (replica.url(), "WARN n0: down: …: a replica…"),
        (cluster.url(), "WARN n0: down: …: part of a cluster…"),
        (no_database, "WARN n0: down: …: it has no such database…"),
        (evicts.url(), "WARN n0: down: …: may evict locks…"),
        (
            no_keys,
            "WARN n0: …: is not counted: it rejected a command: not permitted…",
        ),
        (
            full.url(),
            "WARN n0: …: is not counted: it rejected a command: out of memory…",
        ),
    ] {
        let before = heard().len();
        let locks = builder([url]).outage_timeout(secs(0)).build().unwrap();
        let mut failed = 0;
        eventually("it has failed often", || {
            failed += usize::from(locks.mutex("report").try_lock().is_err());
            let failures = locks.stats().connection_failures;
            3 <= failures || (10 <= failed && failures == 0)
        });
        drop(locks);

        let mut lines = heard().split_off(before);
        lines.retain(|line| !line.starts_with("DEBUG") && !line.starts_with("TRACE"));
        // And one for the outage.
        let outage = "WARN \"report\": no lock can be taken, …";
        for expected in [line, outage] {
            let fitting = lines.iter().filter(|it| fits(expected, it));
            assert_eq!(fitting.count(), 1, "{expected}: {lines:?}");
        }
        assert_eq!(lines.len(), 2, "{line}: {lines:?}");
    }
    passed();
}
