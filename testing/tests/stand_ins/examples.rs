//! The first examples that a reader sees, on stand-ins: but for the line that names the servers they are here as they are
//! shown.

use std::error::Error;
use std::time::Duration;

use quorlock_testing::Nodes;

use crate::TestResult;

/// The README's.
fn readme(nodes: &Nodes) -> Result<(), Box<dyn Error>> {
    let locks = nodes.manager().build()?;

    // Waits its turn; on servers that are new, up to ten seconds first. Extended until it is dropped.
    let guard = locks.mutex("nightly-report").lock()?;
    println!("only one process in the fleet is here, with token {}", guard.fencing_token());
    guard.check()?; // between the steps of a long job
    guard.release()?; // or let the scope end
    Ok(())
}

/// That of the crate's page.
fn page(nodes: &Nodes) -> Result<(), Box<dyn Error>> {
    let locks = nodes.manager().build()?;
    let report = locks.mutex("nightly-report");

    let guard = report.try_lock_for(Duration::from_secs(30))?;
    // Only one process in the fleet is here. Hand guard.fencing_token() to whatever stores the result.
    guard.check()?; // between the steps of a long job
    guard.release()?; // or let the scope end
    Ok(())
}

#[test]
fn the_first_examples_do_what_they_show() -> TestResult {
    let nodes = Nodes::start(3);
    readme(&nodes)?;
    page(&nodes)?;
    assert!(nodes.holder("nightly-report").is_none());
    Ok(())
}

#[test]
fn the_first_examples_are_those_that_are_shown() {
    let here = lines(include_str!("examples.rs"));
    for shown in [include_str!("../../../README.md"), include_str!("../../../src/lib.rs")] {
        let shown = lines(shown);
        let begins = shown.iter().position(|it| it.starts_with("let locks = LockManager::builder(")).unwrap();
        let steps = &shown[begins + 1..];
        let ends = steps.iter().position(|it| it.contains("Ok(())")).unwrap();
        let steps = &steps[..ends];
        assert!(4 < steps.len() && here.windows(steps.len()).any(|it| it == steps), "not here: {}", steps.join("\n"));
    }
}

/// Without blanks, and without the signs of a page.
fn lines(text: &str) -> Vec<&str> {
    let lines = text.lines().map(|it| it.trim_start_matches("//!").trim());
    lines.filter(|it| !it.is_empty()).collect()
}
