//! What the log says: changes once, and no secrets.
//!
//! A logger is the whole process's, so it is another process that listens.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use devnodes::{FakeServer, Server, Servers, debug_form, eventually};
use log::{LevelFilter, Log, Metadata, Record};

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

#[test]
fn log_lines_of_a_call_are_written_before_it_waits() {
    assert_passes("operations::log_lines::child_that_waits");
}

#[test]
#[ignore = "a process of another test"]
fn child_that_waits() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(1).unwrap();
    let urls = servers.urls();
    listen();
    // Not that it hears of anything, and it does not ask again as long as this test lasts.
    let minute = secs(60);
    let locks = connected(builder(&urls).retry_delay(minute, minute), 1);
    let others = builder(&urls).build().unwrap();
    let guard = lock_in_the_end(&others, "report");
    let waiter = std::thread::spawn(move || drop(locks.mutex("report").lock().unwrap()));
    eventually("the line is there", || {
        heard()
            .iter()
            .any(|it| it.contains("\"report\": lost round (held)"))
    });
    drop(guard);
    waiter.join().unwrap();
    passed();
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

/// Kills a server of the child, and starts it again, each when the child has seen what was before.
pub(crate) fn down_and_up(child: &mut ChildProcess, server: &Server) -> TestResult {
    server.kill()?;
    child.go_on();
    assert_eq!(child.hear(), "one is down");
    server.restart()?;
    child.go_on();
    assert_eq!(child.hear(), "all are up");
    Ok(())
}

#[test]
fn nodes_that_go_and_come_are_logged_once_each_and_secrets_never() -> TestResult {
    needs!(Passwords);
    let servers = Servers::start_with(3, |it| it.password("hunter2"))?;
    let mut child = child("operations::log_lines::child_that_logs", &servers.urls());

    assert_eq!(child.hear(), "connected");
    down_and_up(&mut child, &servers[0])?;
    servers[1].pause()?;
    child.go_on();
    assert_eq!(child.hear(), "one does not respond");
    servers[1].resume()?;
    child.go_on();
    assert_eq!(child.hear(), "all respond");

    let lines = told(&child);
    let all = lines.join("\n");
    for (words, expected) in [
        ("INFO n0: down", 1),
        ("INFO n0: up after", 1),
        ("INFO n1: not responding", 1),
        ("INFO n1: responding again", 1),
        // On a slow machine the two that are left may be too slow for a lock, which is a warning.
        ("WARN n", 0),
        ("ERROR", 0),
        ("hunter2", 0),
    ] {
        let count = lines.iter().filter(|it| it.contains(words)).count();
        assert_eq!(count, expected, "{words}: {all}");
    }
    // Owner tokens are 32 hex digits, and shown by their start.
    let words = all.split(|it: char| !it.is_ascii_hexdigit());
    assert_eq!(words.filter(|it| it.len() == 32).count(), 0, "{all}");
    assert!(20 < lines.len(), "{all}");
    assert!(child.wait().success());
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_logs() {
    let Some(urls) = parent_urls() else { return };
    listen();
    let locks = builder(urls)
        .response_timeout(secs(1))
        .ttl(LONG)
        .build()
        .unwrap();
    connect(&locks, 3);
    say("connected");
    for (line, said) in [
        ("n0: still down", "one is down"),
        ("n0: up", "all are up"),
        ("n1: not responding", "one does not respond"),
        ("n1: responding again", "all respond"),
    ] {
        wait_for_parent();
        eventually(line, || {
            drop(locks.mutex("report").lock().unwrap());
            LINES.0.lock().unwrap().iter().any(|it| it.contains(line))
        });
        say(said);
    }
    tell(heard().into_iter().map(|it| it.replace('\n', " ")));
}

#[test]
fn server_errors_are_logged_on_one_line_without_login_data() {
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
        let locks = builder([url]).build().unwrap();
        assert!(locks.mutex("report").try_lock().is_err());
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
fn a_wait_for_new_servers_is_logged_once_with_a_remedy() {
    assert_passes("operations::log_lines::child_that_meets_new_servers");
}

#[test]
#[ignore = "a process of another test"]
fn child_that_meets_new_servers() {
    let Some(_) = parent_urls() else { return };
    let servers = Servers::start(3).unwrap();
    listen();
    for names in [["first", "second"], ["third", "fourth"]] {
        let urls = servers.urls();
        let locks = builder(urls).quarantine(true).build().unwrap();
        for name in names {
            let err = locks.mutex(name).try_lock().unwrap_err();
            assert!(err.to_string().contains("; wait, or vouch for it"), "{err}");
        }
    }

    let mut warnings = heard();
    warnings.retain(|line| line.starts_with("WARN"));
    assert_eq!(warnings.len(), 2, "one for each manager: {warnings:?}");
    for (warning, name) in warnings.iter().zip(["first", "third"]) {
        let begin = format!("WARN {name:?}: no lock can be taken, no quorum: ");
        assert!(warning.starts_with(&begin), "{warning}");
        for words in [
            ": quarantined for ",
            " s more: no lock data, so the server is new ",
            "; wait, or vouch for it if it is new and nobody holds a lock",
        ] {
            assert!(warning.contains(words), "{warning}");
        }
        let is_named = |it: &&Server| warning.contains(&format!(" ({})", shown_address(it)));
        assert!(2 <= servers.iter().filter(is_named).count(), "{warning}");
    }
    passed();
}

#[test]
fn a_node_with_a_failed_first_connection_is_logged_as_up_again() {
    assert_passes("operations::log_lines::child_with_a_failed_first_connection");
}

#[test]
#[ignore = "a process of another test"]
fn child_with_a_failed_first_connection() {
    let Some(_) = parent_urls() else { return };
    let server = Server::start().unwrap();
    let fails = AtomicBool::new(true);
    let fake = FakeServer::speaking_for(server.addr(), move |_, command| {
        let is_about_lock = command.iter().any(|it| it.ends_with(b"report"));
        let is_first = is_about_lock && fails.swap(false, Ordering::SeqCst);
        is_first.then(|| b"garbage\r\n".to_vec())
    })
    .unwrap();
    listen();
    let locks = builder([fake.url()]).build().unwrap();
    drop(lock_in_the_end(&locks, "report"));

    let has = |words| heard().iter().any(|it| it.contains(words));
    eventually("it is logged as down", || has(" n0: down: "));
    eventually("and as up again", || has(" n0: up after "));
    passed();
}
