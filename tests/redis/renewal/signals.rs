//! What a process leaves behind that a signal ends as `guide::programs` and the example `signals` say.

use std::mem::ManuallyDrop;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc;
use std::{process, thread};

use devnodes::{ChildProcess, Servers};
use quorlock::{AcquireError, LockGuard, LockManager, Lost, release_all};
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
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Check,
    CheckInThread,
    Extend,
    Channel,
    LateChannel,
    Callback,
    LateCallback,
    Refused,
    Waiting,
    Release,
    ReleaseAll,
    Drop,
    Shutdown,
    SecondSignal,
}

const WAYS: [Way; 14] = [
    Way::Check,
    Way::CheckInThread,
    Way::Extend,
    Way::Channel,
    Way::LateChannel,
    Way::Callback,
    Way::LateCallback,
    Way::Refused,
    Way::Waiting,
    Way::Release,
    Way::ReleaseAll,
    Way::Drop,
    Way::Shutdown,
    Way::SecondSignal,
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
    assert!(
        without_spaces(EXAMPLE).contains(&without_spaces(&code)),
        "{code}"
    );
}

#[test]
fn a_process_that_stops_as_the_guide_says_leaves_no_key_behind() -> TestResult {
    let servers = Servers::start(3)?;
    for way in WAYS {
        let status = stop(&servers, way);
        let ends_as_meant = match way {
            Way::Callback | Way::LateCallback => status.code() == Some(EXITED),
            Way::SecondSignal => status.signal() == Some(Signal::TERM.as_raw()),
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
    for way in [Way::Check, Way::Callback] {
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
fn the_example_gives_its_lock_back_at_a_signal() -> TestResult {
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
fn start(servers: &Servers, way: Way) -> ChildProcess {
    let mut child = child(
        "renewal::signals::child_that_ends_in_one_way",
        &servers.urls(),
    );
    child.tell(&format!("{way:?}"));
    assert_eq!(child.hear(), "held", "{way:?}");
    child
}

fn stop(servers: &Servers, way: Way) -> ExitStatus {
    let mut child = start(servers, way);
    child.signal(Signal::TERM);
    if way == Way::SecondSignal {
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
    let told = hear_parent();
    let way = WAYS.into_iter().find(|it| told == Some(format!("{it:?}")));
    let way = way.unwrap();
    let locks = connected(builder(urls).ttl(LONG), 3);
    example::shutdown_on_signals(&locks).unwrap();
    let guards = (0..LOCKS).map(|it| lock_in_the_end(&locks, &format!("report {it}")));
    let guards: Vec<_> = guards.collect();
    end(way, &locks, guards);
    // Nothing runs after `main`: no thread has time to finish anything.
    process::exit(0);
}

fn end(way: Way, locks: &LockManager, mut guards: Vec<LockGuard>) {
    // A sign of the shutdown that waits for nothing.
    let begins = || while_not(|| locks.held().is_empty());
    // A drop would wait for the shutdown.
    let last = ManuallyDrop::new(guards.pop().unwrap());
    std::mem::forget(guards);
    match way {
        Way::Check => {
            say("held");
            while_not(|| last.check().is_err());
        }
        Way::CheckInThread => {
            let (ended, end) = mpsc::channel();
            thread::spawn(move || {
                while_not(|| last.check().is_err());
                ended.send(()).unwrap();
                thread::park();
            });
            say("held");
            end.recv().unwrap();
        }
        Way::Extend => {
            say("held");
            begins();
            assert!(last.extend(LONG).is_err());
        }
        Way::Channel => {
            let lost = last.lost();
            say("held");
            assert_eq!(lost.recv(), Ok(Lost::ShutDown));
        }
        Way::LateChannel => {
            say("held");
            begins();
            assert_eq!(last.lost().recv(), Ok(Lost::ShutDown));
        }
        Way::Callback => {
            last.on_lost(|_| process::exit(EXITED));
            say("held");
            park();
        }
        Way::LateCallback => {
            say("held");
            begins();
            last.on_lost(|_| process::exit(EXITED));
            park();
        }
        Way::Refused => {
            say("held");
            begins();
            let refused = locks.mutex("other").try_lock();
            assert_eq!(refused.map(drop), Err(AcquireError::ShutDown));
        }
        Way::Waiting => {
            say("held");
            let waited = locks.mutex("report 0").lock();
            assert_eq!(waited.map(drop), Err(AcquireError::ShutDown));
        }
        Way::Release => {
            say("held");
            begins();
            let _ = ManuallyDrop::into_inner(last).release();
        }
        Way::ReleaseAll => {
            say("held");
            begins();
            let _ = release_all([ManuallyDrop::into_inner(last)]);
        }
        Way::Drop => {
            say("held");
            begins();
            drop(ManuallyDrop::into_inner(last));
        }
        Way::Shutdown => {
            say("held");
            begins();
            locks.shutdown();
        }
        Way::SecondSignal => {
            say("held");
            begins();
            say("stopping");
            park();
        }
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
