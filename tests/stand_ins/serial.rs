//! Tests of several processes, one at a time.

use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use devnodes::{Servers, eventually};
use quorlock::testing::{self, Nodes};

use crate::TestResult;

const NAME: &str = "SERIAL_OF_CHILD";
const HAS_IT: &str = "has it";

/// A name that no other test run has.
fn fresh(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Nobody needs its file any more.
fn clean(name: &str) {
    let _ = std::fs::remove_file(std::env::temp_dir().join(format!("quorlock-serial-{name}")));
}

/// A process that takes the lock, says so, and holds it until its input ends.
#[test]
#[ignore = "a process of another test"]
fn child_that_is_alone() -> TestResult {
    let _alone = testing::serial(&std::env::var(NAME)?);
    println!("{HAS_IT}");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Starts it, with `nodes` if there are any.
fn child(name: &str, nodes: &str) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["--exact", "serial::child_that_is_alone", "--ignored", "--nocapture"])
        .env(NAME, name)
        .env("QUORLOCK_TEST_NODES", nodes)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

/// Waits until the process has the lock.
fn has_it(child: &mut Child) -> bool {
    child
        .stdout
        .as_mut()
        .is_some_and(|it| BufReader::new(it).lines().map_while(Result::ok).any(|it| it.ends_with(HAS_IT)))
}

#[test]
fn a_process_that_is_killed_keeps_no_other_out() -> TestResult {
    let name = fresh("killed");
    let mut other = child(&name, "")?;
    assert!(has_it(&mut other));
    let is_killed = AtomicBool::new(false);
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let _alone = testing::serial(&name);
            assert!(is_killed.load(Ordering::SeqCst), "both have it");
        });
        // It can have it no sooner.
        is_killed.store(true, Ordering::SeqCst);
        other.kill()?;
        waits.join().unwrap();
        other.wait()
    })?;
    clean(&name);
    Ok(())
}

#[test]
fn processes_are_alone_on_stand_ins_and_on_servers() -> TestResult {
    let (nodes, servers) = (Nodes::start(3)?, Servers::start(3)?);
    for urls in [nodes.urls().join(","), servers.urls().join(" ")] {
        let name = fresh("on-nodes");
        let (mut first, mut second) = (child(&name, &urls)?, child(&name, &urls)?);
        let locks = quorlock::LockManager::builder(urls.split([',', ' '])).quarantine(false).build()?;
        let lock = locks.mutex(format!("quorlock-test-serial:{name}"));
        eventually("one of them has it", || lock.try_lock().is_err_and(|it| it.is_held()));
        // Whoever is the first, both come in, one after the other.
        let (inside, ends) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for child in [&mut first, &mut second] {
                scope.spawn(|| {
                    assert!(has_it(child));
                    assert!(!inside.swap(true, Ordering::SeqCst), "both have it");
                    assert!(lock.try_lock().is_err());
                    inside.store(false, Ordering::SeqCst);
                    ends.fetch_add(1, Ordering::SeqCst);
                    drop(child.stdin.take());
                    assert!(child.wait().unwrap().success());
                });
            }
        });
        assert_eq!(ends.into_inner(), 2);
        lock.try_lock_for(devnodes::PATIENCE)?.release()?;
    }
    Ok(())
}

#[test]
fn threads_are_alone_and_a_panic_lets_the_next_one_in() {
    let name = fresh("threads");
    let (inside, times) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let panics = catch_unwind(AssertUnwindSafe(|| {
                        let _alone = testing::serial(&name);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        times.fetch_add(1, Ordering::SeqCst);
                        std::panic::resume_unwind(Box::new("the test fails"));
                    }));
                    assert!(panics.is_err_and(|it| it.is::<&str>()));
                }
            });
        }
    });
    assert_eq!(times.into_inner(), 20);
    let another = fresh("another");
    drop((testing::serial(&name), testing::serial(&another)));
    [name, another].iter().for_each(|it| clean(it));
}
