//! What whoever starts `quorlock run` has left behind: signals, folders, locks, limits.

use super::*;

/// Neither survives in programs that start processes themselves, but both survive exec.
#[test]
fn a_command_ends_though_its_starter_ignores_or_blocks_the_signal_of_its_end() -> TestResult {
    let servers = Servers::start(3)?;
    for signals in ["--ignore-signal=CHLD", "--block-signal=CHLD"] {
        let command = ["run", "report", "-c", "exit 3"];
        let mut run = Running::start(&mut started_by(
            &["env", signals],
            quorlock(&servers).args(command),
        ));
        assert_eq!(run.status(), Some(3), "{signals}");
    }
    Ok(())
}

#[test]
fn signals_that_the_starter_blocks_reach_the_command() -> TestResult {
    let servers = Servers::start(3)?;
    let mut run = Running::start(&mut started_by(
        &["env", "--block-signal=TERM"],
        quorlock(&servers).args(["run", "report", "-c", "echo ready; exec sleep 1000"]),
    ));
    assert_eq!(run.line().as_deref(), Some("ready"));
    run.signal(Signal::TERM);
    assert_eq!(run.status(), Some(143));
    let mut hold = Running::start(&mut started_by(
        &["env", "--block-signal=TERM"],
        quorlock(&servers).args(["hold", "report"]),
    ));
    assert!(hold.line().is_some_and(|it| it.starts_with("held ")));
    hold.signal(Signal::TERM);
    assert_eq!(hold.status(), Some(0));
    Ok(())
}
