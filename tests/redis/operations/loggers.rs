//! A program's logger and observer that take their time, call the crate, or panic.
//!
//! A logger is the whole process's, so each manner has a process of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use devnodes::{PATIENCE, Servers, eventually};
use log::{LevelFilter, Log, Metadata, Record};
use quorlock::observer::{Event, Observer};
use quorlock::{LockGuard, LockManager, LostReason};

use crate::support::*;

/// What user code does each time it is called.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Manner {
    /// Asks everything that promises not to block, and takes a lock at many lines.
    Asks,
    /// Does not return until it is released, once there is something to release it.
    Blocks,
    /// As `println!` to a pipe that nobody reads any more.
    Panics,
}

const MANNERS: [Manner; 3] = [Manner::Asks, Manner::Blocks, Manner::Panics];

static MANNER: OnceLock<Manner> = OnceLock::new();
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// Of [`Manner::Asks`]: what it asks, and how often it has taken a lock.
static KNOWN: OnceLock<(LockManager, Arc<LockGuard>)> = OnceLock::new();
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Of [`Manner::Blocks`]: tells that it blocks, and waits.
static BLOCKED: OnceLock<(Sender<()>, Receiver<()>)> = OnceLock::new();

fn user_code() {
    CALLS.fetch_add(1, Ordering::SeqCst);
    match MANNER.get().unwrap() {
        Manner::Asks => {
            if let Some((locks, guard)) = KNOWN.get() {
                let _ = (locks.stats(), locks.held(), guard.lost().try_recv());
                let _ = (guard.is_valid(), guard.check(), guard.remaining());
            }
        }
        Manner::Blocks => {
            if let Some((blocked, released)) = BLOCKED.get() {
                let _ = blocked.try_send(());
                let _ = released.recv_timeout(PATIENCE);
            }
        }
        // Without the panic hook, which would show it in the log of the tests.
        Manner::Panics => std::panic::resume_unwind(Box::new("failed printing to stdout")),
    }
}

struct UserCode;

impl Log for UserCode {
    fn enabled(&self, data: &Metadata<'_>) -> bool {
        let is_ours = data.target() == "quorlock";
        if is_ours && MANNER.get() == Some(&Manner::Asks) {
            user_code();
        }
        is_ours
    }

    fn log(&self, record: &Record<'_>) {
        if record.target() != "quorlock" {
            return;
        }
        user_code();
        // The lines of its own locks come here as well.
        if let Some((locks, _)) = KNOWN.get()
            && !record.args().to_string().contains("for the logger")
        {
            let taken = locks.mutex("for the logger").try_lock_for(secs(1)).is_ok();
            TAKEN.fetch_add(usize::from(taken), Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

#[test]
fn h11_h19_user_code_that_asks_and_locks_delays_no_call() {
    assert_passes_with("operations::loggers::child_with_such_user_code", "0");
}

#[test]
fn h19_user_code_that_blocks_delays_no_renewal_no_guard_and_no_call() {
    assert_passes_with("operations::loggers::child_with_such_user_code", "1");
}

#[test]
fn h19_user_code_that_panics_ends_no_thread_and_no_call() {
    assert_passes_with("operations::loggers::child_with_such_user_code", "2");
}

#[test]
#[ignore = "a process of another test"]
fn child_with_such_user_code() {
    let [manner] = &child_urls()[..] else { return };
    let manner = MANNERS[manner.parse::<usize>().unwrap()];
    MANNER.set(manner).unwrap();
    log::set_logger(&UserCode).unwrap();
    // Not the lines of single answers: each lock that it takes would cause more of them than it
    // has time for.
    log::set_max_level(LevelFilter::Debug);
    let servers = Servers::start(3).unwrap();
    // Long enough that a busy machine costs no lock.
    let options = builder(servers.urls())
        .response_timeout(ms(500))
        .ttl(secs(9));
    let locks = options.observer(|_: &Event| user_code()).build().unwrap();
    connect(&locks, 3);
    let (watched, other) = (
        Arc::new(lock_in_the_end(&locks, "watched")),
        lock_in_the_end(&locks, "other"),
    );
    let (called, call) = bounded(1);
    watched.on_lost(move |lost| called.send(lost.reason).unwrap());
    let (release, released) = bounded(0);
    match manner {
        Manner::Asks => assert!(KNOWN.set((locks.clone(), Arc::clone(&watched))).is_ok()),
        Manner::Blocks => {
            let (blocked, is_blocked) = bounded(1);
            assert!(BLOCKED.set((blocked, released)).is_ok());
            is_blocked.recv_timeout(PATIENCE).expect("it blocks");
        }
        Manner::Panics => eventually("it has panicked", || 0 < CALLS.load(Ordering::SeqCst)),
    }

    servers[0].pause().unwrap();
    let node = |node: usize| locks.stats().nodes.swap_remove(node);
    // Nobody but the renewal thread asks the nodes.
    eventually("one does not respond", || node(0).silent);
    servers[0].resume().unwrap();
    eventually("it responds again", || !node(0).silent);
    servers[1].kill().unwrap();
    eventually("one is down", || !node(1).up);
    servers[1].restart().unwrap();
    eventually("it is up again", || node(1).up);
    wait_for_extensions(&locks, 3);
    // With a call that waits, for the lines and lists that go with that.
    let guard = lock_in_the_end(&locks, "report");
    let waits = locks.mutex("report");
    let waiter = thread::spawn(move || drop(waits.lock().unwrap()));
    drop(guard);
    join(waiter);
    let late = watched.lost();
    del_all(&servers, "watched");
    assert_eq!(announced(&late), LostReason::Gone);
    assert_eq!(call.recv_timeout(PATIENCE), Ok(LostReason::Gone));
    assert!(!watched.is_valid());
    assert!(other.is_valid(), "its renewal was held up");
    if manner == Manner::Asks {
        eventually("the logger has taken locks", || {
            TAKEN.load(Ordering::Relaxed) != 0
        });
    }
    drop((release, other));
    locks.shutdown();
    passed();
}

#[test]
fn an_observer_that_drops_the_last_manager_ends_it() -> TestResult {
    let servers = Servers::start(3)?;
    let last: Arc<Mutex<Option<LockManager>>> = Arc::default();
    let drops = Arc::clone(&last);
    let observer: Arc<dyn Observer> = Arc::new(move |event: &Event| {
        if let Event::NodeDown { .. } = event {
            let locks = drops.lock().unwrap().take();
            drop(locks);
        }
    });
    let options = builder(servers.urls()).ttl(LONG).shutdown_grace(ms(100));
    let locks = connected(options.observer(Arc::clone(&observer)), 3);
    *last.lock().unwrap() = Some(locks);

    servers[0].kill()?;

    eventually("it is dropped", || last.lock().unwrap().is_none());
    // Every thread of the manager has it.
    eventually("nothing is left of the manager", || {
        Arc::strong_count(&observer) == 1
    });
    Ok(())
}

struct Late;

impl Log for Late {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    /// Passes on what it logs of a loss, after others have had their turn.
    fn log(&self, record: &Record<'_>) {
        let line = record.args().to_string();
        if line.contains("LOST") {
            thread::sleep(ms(50));
            say(line);
        }
    }

    fn flush(&self) {}
}

#[test]
fn h19_a_process_that_exits_behind_a_drop_logs_the_loss_of_its_lock() -> TestResult {
    let servers = Servers::start(3)?;
    let name = "operations::loggers::child_that_exits_behind_a_drop";
    let mut child = child(name, &servers.urls());

    let line = child.hear();
    assert!(line.contains("\"report\": LOST"), "{line}");
    assert!(child.wait().success());
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_exits_behind_a_drop() {
    let Some(urls) = parent_urls() else { return };
    log::set_logger(&Late).unwrap();
    log::set_max_level(LevelFilter::Warn);
    let locks = connected(builder(&urls).ttl(LONG).renew(false), 3);
    let guard = lock_in_the_end(&locks, "report");
    // As an operator does.
    let operator = builder(&urls).build().unwrap();
    let seen = operator.mutex("report").inspect().unwrap();
    operator.admin().release(&seen).unwrap();
    drop(guard);
    drop(locks);
    std::process::exit(0);
}
