//! What a process leaves behind that a signal ends as `guide::programs` and the example `signals` say.

use std::mem::ManuallyDrop;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc;
use std::{process, thread};

use devnodes::{ChildProcess, Servers};
use quorlock::{AcquireError, LockGuard, LockManager, LostReason};
use rustix::process::Signal;

use crate::support::*;

#[path = "../../../examples/signals/job.rs"]
mod example;

const GUIDE: &str = include_str!("../../../src/guide/programs.md");
const EXAMPLE: &str = include_str!("../../../examples/signals/job.rs");
/// So many releases are not written in an instant.
const LOCKS: usize = 200;
const EXITED: i32 = 3;

/// How the process ends once the shutdown has begun.
const WAYS: [&str; 13] = [
    "check",
    "check in thread",
    "extend",
    "channel",
    "late channel",
    "callback",
    "late callback",
    "refused",
    "waiting",
    "release",
    "drop",
    "shutdown",
    "second signal",
];

fn without_spaces(code: &str) -> String {
    code.split_whitespace().collect()
}

#[test]
fn the_guide_and_the_example_catch_signals_in_the_same_way() {
    let signals = GUIDE.split_once("# Signals").unwrap().1;
    let code = signals.split("```").nth(1).unwrap();
    let code = code.trim_start_matches("text").lines();
    let code: String = code
        .map(|line| line.split("//").next().unwrap_or(line))
        .collect();
    assert_contains(without_spaces(EXAMPLE), &without_spaces(&code));
}

#[test]
fn a_process_that_stops_by_the_guide_leaves_no_key() -> TestResult {
    let servers = Servers::start(3)?;
    for way in WAYS {
        let status = stop(&servers, way);
        let ends_as_meant = match way {
            "callback" | "late callback" => status.code() == Some(EXITED),
            "second signal" => status.signal() == Some(Signal::TERM.as_raw()),
            _ => status.success(),
        };
        assert!(ends_as_meant, "{way:?}: {status}");
        assert_eq!(keys(&servers), [0; 3], "{way:?}: keys left on each server");
    }
    Ok(())
}

#[test]
fn a_process_that_stops_beside_a_hung_server_leaves_no_key_on_the_others() -> TestResult {
    let servers = Servers::start(3)?;
    for way in ["check", "callback"] {
        let mut child = start(&servers, way);
        servers[0].pause()?;
        child.signal(Signal::TERM);
        child.wait();
        assert_eq!(keys(&servers)[1..], [0; 2], "{way:?}: keys left");
        servers[0].resume()?;
    }
    Ok(())
}

#[test]
fn the_example_releases_its_lock_at_a_signal() -> TestResult {
    let servers = Servers::start(3)?;
    let mut child = child(
        "renewal::signals::child_that_is_the_example",
        &servers.urls(),
    );
    assert_eq!(child.hear(), "held");
    child.signal(Signal::TERM);
    assert!(child.wait().success());
    assert_eq!(keys(&servers), [0; 3]);
    Ok(())
}

#[test]
#[ignore = "a process of another test"]
fn child_that_is_the_example() {
    let Some(urls) = parent_urls() else { return };
    let locks = builder(urls).ttl(LONG).build().unwrap();
    let result = example::job(&locks, || {
        say("held");
        Ok(())
    });
    process::exit(i32::from(result.is_err()));
}

/// Starts a process with many locks.
fn start(servers: &Servers, way: &str) -> ChildProcess {
    let mut child = child(
        "renewal::signals::child_that_ends_in_one_way",
        &servers.urls(),
    );
    child.tell(way);
    assert_eq!(child.hear(), "held", "{way:?}");
    child
}

fn stop(servers: &Servers, way: &str) -> ExitStatus {
    let mut child = start(servers, way);
    child.signal(Signal::TERM);
    if way == "second signal" {
        assert_eq!(child.hear(), "stopping");
        child.signal(Signal::TERM);
    }
    child.wait()
}

/// How many locks each server has now: nobody is left who would free one.
fn keys(servers: &Servers) -> Vec<usize> {
    let running = servers.iter().map(|it| {
        if it.is_paused() {
            0
        } else {
            lock_keys(it).len()
        }
    });
    running.collect()
}

#[test]
#[ignore = "a process of another test"]
fn child_that_ends_in_one_way() {
    let Some(urls) = parent_urls() else { return };
    let way = hear_parent().unwrap();
    let locks = connected(builder(urls).ttl(LONG), 3);
    example::shutdown_on_signals(&locks).unwrap();
    let guards = (0..LOCKS).map(|it| lock_in_the_end(&locks, &format!("report {it}")));
    let guards: Vec<_> = guards.collect();
    end(&way, &locks, guards);
    // Nothing runs after `main`: no thread has time to finish anything.
    process::exit(0);
}

fn end(way: &str, locks: &LockManager, mut guards: Vec<LockGuard>) {
    // A drop would wait for the shutdown.
    let last = ManuallyDrop::new(guards.pop().unwrap());
    std::mem::forget(guards);
    match way {
        "check" => {
            say("held");
            while_not(|| last.check().is_err());
        }
        "check in thread" => {
            let (ended, end) = mpsc::channel();
            thread::spawn(move || {
                while_not(|| last.check().is_err());
                ended.send(()).unwrap();
                thread::park();
            });
            say("held");
            end.recv().unwrap();
        }
        "channel" => {
            let lost = last.lost();
            say("held");
            assert_eq!(lost.recv().map(|it| it.reason), Ok(LostReason::ShutDown));
        }
        "callback" => {
            last.on_lost(|_| process::exit(EXITED));
            say("held");
            park();
        }
        "waiting" => {
            say("held");
            let waited = locks.mutex("report 0").lock();
            assert_eq!(waited.map(drop), Err(AcquireError::ShutDown));
        }
        _ => {
            say("held");
            // A sign of the shutdown that waits for nothing.
            while_not(|| locks.held().is_empty());
            end_late(way, locks, last);
        }
    }
}

/// The shutdown has begun.
fn end_late(way: &str, locks: &LockManager, last: ManuallyDrop<LockGuard>) {
    match way {
        "extend" => assert!(last.extend(LONG).is_err()),
        "late channel" => assert_eq!(
            last.lost().recv().map(|it| it.reason),
            Ok(LostReason::ShutDown)
        ),
        "late callback" => {
            last.on_lost(|_| process::exit(EXITED));
            park();
        }
        "refused" => {
            let refused = locks.mutex("other").try_lock();
            assert_eq!(refused.map(drop), Err(AcquireError::ShutDown));
        }
        "release" => drop(ManuallyDrop::into_inner(last).release()),
        "drop" => drop(ManuallyDrop::into_inner(last)),
        "shutdown" => locks.shutdown(),
        "second signal" => {
            say("stopping");
            park();
        }
        other => panic!("{other:?} is no way to end"),
    }
}

/// Without a pause: the shutdown is short.
fn while_not(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::yield_now();
    }
}

fn park() -> ! {
    loop {
        thread::park();
    }
}
