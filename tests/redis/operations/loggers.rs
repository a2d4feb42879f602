//! Loggers that take their time, and loggers that come back to us.
//!
//! A logger is the whole process's, so it is another process that has it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use devnodes::{PATIENCE, Servers, eventually};
use log::{LevelFilter, Log, Metadata, Record};
use quorlock::{LockGuard, LockManager, LostReason};

use crate::operations::log_lines::down_and_up;
use crate::support::*;

/// A logger that calls a function.
struct Logger(fn(&Record<'_>));

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        (self.0)(record);
    }

    fn flush(&self) {}
}

fn log_to(log: fn(&Record<'_>), level: LevelFilter) {
    let logger = Box::leak(Box::new(Logger(log)));
    log::set_logger(logger).unwrap();
    log::set_max_level(level);
}

/// Asks everything that promises not to block, at every line and before, and takes a lock at many.
struct Curious;

static LOCKS: OnceLock<LockManager> = OnceLock::new();
static GUARDS: Mutex<Vec<&'static LockGuard>> = Mutex::new(Vec::new());
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// How often it has taken a lock.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

impl Curious {
    fn ask() {
        let guards = GUARDS.lock().unwrap().clone();
        for guard in guards {
            let _ = (
                guard.is_valid(),
                guard.check(),
                guard.remaining(),
                guard.lost().try_recv(),
            );
        }
        if let Some(locks) = LOCKS.get() {
            let _ = locks.stats();
        }
    }
}

impl Log for Curious {
    fn enabled(&self, data: &Metadata<'_>) -> bool {
        let is_ours = data.target() == "quorlock";
        if is_ours {
            Curious::ask();
        }
        is_ours
    }

    fn log(&self, record: &Record<'_>) {
        if record.target() != "quorlock" {
            return;
        }
        Curious::ask();
        let line = record.args().to_string();
        // The lines of its own locks come here as well.
        let is_own = line.contains("for the logger");
        LINES.lock().unwrap().push(line);
        if let Some(locks) = LOCKS.get()
            && !is_own
        {
            let taken = locks.mutex("for the logger").try_lock_for(secs(1)).is_ok();
            TAKEN.fetch_add(usize::from(taken), Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

#[test]
fn h19_a_logger_that_takes_locks_delays_no_call() -> TestResult {
    let servers = Servers::start(3)?;
    let name = "operations::loggers::child_with_a_curious_logger";
    let mut child = child(name, &servers.urls());

    assert_eq!(child.hear(), "held");
    servers[0].pause()?;
    child.go_on();
    assert_eq!(child.hear(), "one does not respond");
    servers[0].resume()?;
    down_and_up(&mut child, &servers[1])?;
    del_all(&servers, "watched");
    child.go_on();
    assert_eq!(child.hear(), "the end");
    assert!(child.wait().success());
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_with_a_curious_logger() {
    let Some(urls) = parent_urls() else { return };
    log::set_logger(&Curious).unwrap();
    // Not the lines of single answers: each lock that it takes would cause more of them than it has time for.
    log::set_max_level(LevelFilter::Debug);
    // Long enough that a busy machine costs no lock.
    let locks = builder(urls)
        .response_timeout(ms(300))
        .ttl(secs(9))
        .build()
        .unwrap();
    assert!(LOCKS.set(locks.clone()).is_ok());
    // A node that is paused before it is connected is down, and not one that does not respond.
    connect(&locks, 3);
    // One that is watched by the logger, and one that is watched by nobody else.
    let watched: &'static LockGuard = Box::leak(Box::new(lock_in_the_end(&locks, "watched")));
    GUARDS.lock().unwrap().push(watched);
    let lost = watched.lost();
    let other = lock_in_the_end(&locks, "other");
    say("held");
    wait_for_parent();
    let cycle_until = |line: &str| {
        eventually(line, || {
            // Also waits, for the lines and lists that go with that.
            let waits = locks.clone();
            let guard = locks.mutex("report").try_lock_for(PATIENCE);
            let waiter = thread::spawn(move || drop(waits.mutex("report").try_lock_for(PATIENCE)));
            drop(guard);
            waiter.join().unwrap();
            LINES.lock().unwrap().iter().any(|it| it.contains(line))
        });
    };
    // Nobody asks the nodes but the renewal thread, and of its locks the watched one is due first.
    eventually("the renewal says so", || {
        let lines = LINES.lock().unwrap();
        lines.iter().any(|it| it.contains("n0: not responding"))
    });
    say("one does not respond");
    wait_for_parent();
    cycle_until("n1: down");
    say("one is down");
    wait_for_parent();
    cycle_until("n1: up after");
    say("all are up");
    wait_for_parent();
    assert_eq!(
        lost.recv_timeout(PATIENCE).map(|it| it.reason),
        Ok(LostReason::Gone)
    );
    cycle_until("\"watched\": LOST");
    assert!(other.is_valid(), "its renewal was held up");
    eventually("the logger has taken locks", || {
        TAKEN.load(Ordering::Relaxed) != 0
    });
    drop(other);
    locks.shutdown();
    say("the end");
}

static REACHED: OnceLock<Sender<()>> = OnceLock::new();
static LET_GO: OnceLock<Receiver<()>> = OnceLock::new();

/// Does not come back from the line that says that a node does not respond, until it is let go.
fn log_slowly(record: &Record<'_>) {
    if let (Some(reached), Some(let_go)) = (REACHED.get(), LET_GO.get())
        && record.args().to_string().contains("not responding")
    {
        let _ = reached.try_send(());
        let _ = let_go.recv_timeout(PATIENCE);
    }
}

#[test]
fn h19_a_logger_that_blocks_delays_no_renewal_no_guard_and_no_call() -> TestResult {
    let servers = Servers::start(3)?;
    let name = "operations::loggers::child_with_a_slow_logger";
    let mut child = child(name, &servers.urls());

    assert_eq!(child.hear(), "held");
    servers[0].pause()?;
    child.go_on();
    assert_eq!(child.hear(), "answered");
    servers[0].resume()?;
    child.go_on();
    assert!(child.wait().success());
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_with_a_slow_logger() {
    let Some(urls) = parent_urls() else { return };
    log_to(log_slowly, LevelFilter::Info);
    // Nobody but the renewal thread asks the nodes.
    let locks = builder(urls)
        .response_timeout(ms(300))
        .ttl(secs(6))
        .build()
        .unwrap();
    // A node that is paused before it is connected is down, and not one that does not respond.
    connect(&locks, 3);
    let guard = lock_in_the_end(&locks, "report");
    // From here on: on a busy machine a node may not respond before.
    let ((reached, is_reached), (let_go, waits)) = (bounded(1), bounded(1));
    assert!(REACHED.set(reached).is_ok() && LET_GO.set(waits).is_ok());
    say("held");
    wait_for_parent();
    is_reached.recv_timeout(PATIENCE).expect("it is reached");
    let (answer, answered) = bounded(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = (guard.is_valid(), guard.check(), guard.remaining());
            guard.on_lost(drop);
            drop(guard.lost());
            answer.send(()).unwrap();
        });
        let is_answered = answered.recv_timeout(PATIENCE);
        is_answered.expect("the guard waits for the log");
    });
    let before = locks.stats().extensions;
    eventually("it is renewed while the log takes its time", || {
        before + 3 <= locks.stats().extensions
    });
    drop(lock_in_the_end(&locks, "other"));
    guard.check().unwrap();
    let_go.send(()).unwrap();
    say("answered");
    wait_for_parent();
}

static BROKEN_LINES: AtomicUsize = AtomicUsize::new(0);

/// Prints to a pipe that nobody reads any more, as it were.
fn log_to_nobody(record: &Record<'_>) {
    if record.target() == "quorlock" {
        BROKEN_LINES.fetch_add(1, Ordering::SeqCst);
        // Without the panic hook, which would show it in the log of the tests.
        std::panic::resume_unwind(Box::new("failed printing to stdout"));
    }
}

#[test]
fn h19_a_logger_that_panics_ends_no_thread_and_no_call() -> TestResult {
    let servers = Servers::start(3)?;
    let name = "operations::loggers::child_with_a_broken_logger";
    let mut child = child(name, &servers.urls());

    assert_eq!(child.hear(), "held");
    down_and_up(&mut child, &servers[0])?;
    del_all(&servers, "watched");
    child.go_on();
    assert_eq!(child.hear(), "lost and renewed");
    assert!(child.wait().success());
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_with_a_broken_logger() {
    let Some(urls) = parent_urls() else { return };
    log_to(log_to_nobody, LevelFilter::Debug);
    let locks = builder(urls)
        .response_timeout(secs(1))
        .ttl(secs(5))
        .build()
        .unwrap();
    connect(&locks, 3);
    let watched = lock_in_the_end(&locks, "watched");
    let (told, tells) = bounded(1);
    watched.on_lost(move |lost| told.send(lost).unwrap());
    let (lost, other) = (watched.lost(), lock_in_the_end(&locks, "other"));
    say("held");
    wait_for_parent();
    eventually("a node is down", || {
        locks.check_nodes().iter().any(|it| it.failure.is_some())
    });
    say("one is down");
    wait_for_parent();
    eventually("its thread connects again", || {
        locks.check_nodes().iter().all(|it| it.failure.is_none())
    });
    say("all are up");
    wait_for_parent();
    assert_eq!(
        lost.recv_timeout(PATIENCE).map(|it| it.reason),
        Ok(LostReason::Gone)
    );
    assert_eq!(
        tells.recv_timeout(PATIENCE).map(|it| it.reason),
        Ok(LostReason::Gone)
    );
    let before = locks.stats().extensions;
    eventually("the other lock is renewed", || {
        before + 2 <= locks.stats().extensions
    });
    other.check().unwrap();
    assert!(0 < BROKEN_LINES.load(Ordering::SeqCst));
    say("lost and renewed");
}

/// Passes on what it logs of a loss, after others have had their turn.
fn log_late(record: &Record<'_>) {
    let line = record.args().to_string();
    if line.contains("LOST") {
        thread::sleep(ms(50));
        say(line);
    }
}

#[test]
fn h19_a_process_that_exits_behind_a_drop_logs_the_loss_of_its_lock() -> TestResult {
    let servers = Servers::start(3)?;
    let name = "operations::loggers::child_that_exits_behind_a_drop";
    let mut child = child(name, &servers.urls());
    assert_eq!(child.hear(), "held");

    del_all(&servers, "report");
    child.go_on();

    let line = child.hear();
    assert!(line.contains("\"report\": LOST"), "{line}");
    assert!(child.wait().success());
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_exits_behind_a_drop() {
    let Some(urls) = parent_urls() else { return };
    log_to(log_late, LevelFilter::Warn);
    let locks = connected(builder(urls).ttl(LONG), 3);
    let guard = lock_in_the_end(&locks, "report");
    say("held");
    wait_for_parent();
    drop(guard);
    drop(locks);
    std::process::exit(0);
}
