//! The first examples that a reader sees, on stand-ins: but for the line that names the servers they are here as they are
//! shown.

use std::error::Error;
use std::thread;
use std::time::Duration;

use quorlock::AcquireError;
use quorlock_testing::{Nodes, Refusal};

use crate::TestResult;

/// The README's.
fn readme(nodes: &Nodes) -> Result<(), Box<dyn Error>> {
    let locks = nodes.manager().build()?;

    // Waits for its turn. On new servers, the first lock takes up to eleven seconds.
    let guard = locks.lock("nightly-report")?;
    println!("the only holder, with token {}", guard.fencing_token());
    guard.check()?; // between the steps of a long job
    guard.release()?; // or drop the guard
    Ok(())
}

/// That of the crate's page.
fn page(nodes: &Nodes) -> Result<(), Box<dyn Error>> {
    let locks = nodes.manager().build()?;
    let report = locks.mutex("nightly-report");

    let guard = report.try_lock_for(Duration::from_secs(30))?;
    println!("the only holder, with token {}", guard.fencing_token());
    guard.check()?; // between the steps of a long job
    guard.release()?; // or drop the guard
    Ok(())
}

#[test]
fn the_first_examples_run_as_shown() -> TestResult {
    let nodes = Nodes::start(3);
    readme(&nodes)?;
    page(&nodes)?;
    assert!(nodes.holder("nightly-report").is_none());
    Ok(())
}

#[test]
fn the_first_examples_are_those_that_are_shown() {
    let here = lines(include_str!("examples.rs"));
    for shown in [
        include_str!("../../../README.md"),
        include_str!("../../../src/lib.rs"),
    ] {
        let shown = lines(shown);
        let begins = shown
            .iter()
            .position(|it| it.starts_with("let locks = LockManager::builder("))
            .unwrap();
        let steps = &shown[begins + 1..];
        let ends = steps.iter().position(|it| it.contains("Ok(())")).unwrap();
        let steps = &steps[..ends];
        assert!(
            4 < steps.len() && here.windows(steps.len()).any(|it| it == steps),
            "not here: {}",
            steps.join("\n")
        );
    }
}

#[test]
fn a_held_lock_is_refused() -> Result<(), Box<dyn std::error::Error>> {
    let nodes = Nodes::start(3);
    let locks = nodes.manager().build()?;
    let other = nodes.hold("report");
    assert!(locks.mutex("report").try_lock().unwrap_err().is_held());
    drop(other);
    Ok(())
}

#[test]
fn a_release_wakes_the_waiting_call() -> Result<(), Box<dyn std::error::Error>> {
    let nodes = Nodes::start(3);
    let locks = nodes.manager().build()?;
    let other = nodes.hold("report");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| locks.mutex("report").lock().map(drop));
        nodes.wait_until_waiting(1);
        drop(other);
        assert!(waiting.join().unwrap().is_ok());
    });
    Ok(())
}

#[test]
fn a_lost_lock_stops_the_work() -> Result<(), Box<dyn std::error::Error>> {
    let nodes = Nodes::start(3);
    let ms = Duration::from_millis;
    let locks = nodes
        .manager()
        .ttl(ms(400))
        .response_timeout(ms(100))
        .build()?;
    let guard = locks.mutex("report").lock()?;
    let other = nodes.lose("report"); // or pause all nodes for longer than the ttl
    guard.lost().recv()?;
    assert!(guard.check().is_err());
    drop(other);
    Ok(())
}

#[test]
fn two_of_three_servers_fail() -> Result<(), Box<dyn std::error::Error>> {
    let nodes = Nodes::start(3);
    let locks = nodes.manager().build()?;
    nodes[0].down();
    locks.mutex("report").try_lock()?.release()?;
    nodes[1].refuse(Refusal::OutOfMemory);
    let err = locks.mutex("report").try_lock().unwrap_err();
    assert!(matches!(err, AcquireError::NoQuorum { .. }));
    Ok(())
}

/// The examples of the page are compiled there, and run here.
#[test]
fn the_tests_of_the_guide_are_those_that_are_shown() {
    let here = lines(include_str!("examples.rs"));
    let shown = lines(include_str!("../../../src/guide/testing.md"));
    let blocks = shown.split(|line| line.starts_with("```"));
    let begins = |block: &[&str]| block.iter().position(|line| line.starts_with("fn "));
    let functions: Vec<_> = blocks
        .filter_map(|block| block.get(begins(block)?..))
        .collect();
    assert_eq!(functions.len(), 4);
    for function in functions {
        assert!(
            here.windows(function.len()).any(|it| it == function),
            "not here: {}",
            function.join("\n")
        );
    }
}

/// Without blanks, and without the signs of a page.
fn lines(text: &str) -> Vec<&str> {
    let lines = text.lines().map(|it| it.trim_start_matches("//!").trim());
    lines.filter(|it| !it.is_empty()).collect()
}
