//! A process that has no file descriptors left.

use std::fs::{self, File};

use devnodes::{ChildProcess, eventually, say};
use quorlock_testing::Nodes;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::{connected, patient};

const URLS: &str = "QUORLOCK_CHILD_DESCRIPTORS";
const DESCRIPTORS: u64 = 64;

#[test]
fn without_descriptors_stand_ins_report_the_limit_and_still_end() {
    let name = "descriptors::child_without_descriptors";
    let mut child = ChildProcess::start(name, [(URLS.into(), "1".into())]);
    let said = child.hear();
    assert!(said.contains("file descriptors (ulimit -n)"), "{said}");
    assert_eq!(child.hear(), "a lock was taken");
    assert_eq!(child.hear(), "ended");
    assert!(child.wait().success());
}

#[test]
#[ignore = "a process of another test"]
fn child_without_descriptors() {
    if std::env::var_os(URLS).is_none() {
        return;
    }
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(DESCRIPTORS),
            maximum: Some(DESCRIPTORS),
        },
    )
    .unwrap();
    say(Nodes::try_start(1_000).unwrap_err());

    let nodes = Nodes::start(3);
    {
        let locks = connected(patient(&nodes), 3);
        drop(locks.mutex("report").try_lock().unwrap());
        say("a lock was taken");
    }
    let all: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(!all.is_empty());
    drop(nodes);
    drop(all);
    // A thread that was joined is in the list of the system for a moment more.
    eventually("no thread is left", || threads_of_stand_ins().is_empty());
    say("ended");
}

/// Their names, where the system tells.
fn threads_of_stand_ins() -> Vec<String> {
    let threads = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    let names = threads.filter_map(|it| fs::read_to_string(it.path().join("comm")).ok());
    names.filter(|it| it.starts_with("quorlock-test")).collect()
}
