//! `quorlock release`.

use std::process::Stdio;
use std::time::Duration;

use devnodes::{Servers, eventually};
use quorlock::{LockGuard, LockManager};

use crate::support::*;

fn held(servers: &Servers) -> (LockManager, LockGuard) {
    // So that nothing is extended or healed meanwhile.
    let builder = patient(&servers.urls()).ttl(Duration::from_secs(600));
    let locks = builder.owner_label("night").build().unwrap();
    let guard = locks.mutex("report").lock().unwrap();
    eventually("it is on all nodes", || servers.holders("report") == 3);
    (locks, guard)
}

fn free(servers: &Servers) -> bool {
    servers.iter().all(|it| !it.exists("report"))
}

#[test]
fn a_held_lock_is_released_only_with_force_and_yes() -> TestResult {
    let servers = Servers::start(3)?;
    let (_locks, guard) = held(&servers);
    for (args, says) in [(&["--yes"][..], "--force"), (&["--force"], "--yes")] {
        let refused = quorlock(&servers)
            .args(["release", "report"])
            .args(args)
            .stdin(Stdio::null())
            .output()?;
        assert_eq!(refused.status.code(), Some(64));
        assert!(stderr(&refused).contains(says), "{}", stderr(&refused));
    }
    assert!(guard.is_valid() && servers.holders("report") == 3);

    let done = quorlock(&servers)
        .args(["release", "report", "--force", "--yes"])
        .output()?;

    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let text = stdout(&done);
    assert!(
        text.starts_with("report: held by ")
            && text.contains("/night")
            && text.contains(": released"),
        "{text}"
    );
    assert!(free(&servers));
    let again = quorlock(&servers)
        .args(["release", "report", "--force", "--yes"])
        .output()?;
    assert_eq!(
        (again.status.code(), stdout(&again).as_str()),
        (Some(0), "report: not held\n")
    );
    Ok(())
}

#[test]
fn a_release_at_a_terminal_shows_the_risk_and_needs_a_yes() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, _guard) = held(&servers);
    for (answer, status) in [("n", 1), ("", 1), ("yep", 1), ("y", 0)] {
        let mut terminal =
            Terminal::start(quorlock(&servers).args(["release", "report", "--force"]));
        terminal.wait_for("Release it? [y/N] ");
        assert!(
            terminal.said().contains("at work already"),
            "{}",
            terminal.said()
        );
        assert_eq!(servers.holders("report"), 3);
        terminal.tell(answer);
        assert_eq!(
            terminal.status(),
            Some(status),
            "{answer}: {}",
            terminal.said()
        );
        assert_eq!(free(&servers), status == 0, "{answer}");
    }
    drop(locks);
    Ok(())
}

#[test]
fn a_holder_since_the_prompt_keeps_its_lock() -> TestResult {
    let servers = Servers::start(3)?;
    let (locks, guard) = held(&servers);
    let mut terminal = Terminal::start(quorlock(&servers).args(["release", "report", "--force"]));
    terminal.wait_for("[y/N] ");
    guard.release()?;
    let second = locks.mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);
    let before: Vec<_> = servers.iter().map(|it| it.get("report")).collect();

    terminal.tell("yes");

    assert_eq!(terminal.status(), Some(0), "{}", terminal.said());
    assert_eq!(
        servers
            .iter()
            .map(|it| it.get("report"))
            .collect::<Vec<_>>(),
        before
    );
    assert!(second.is_valid());
    Ok(())
}

#[test]
fn a_permit_is_taken_by_its_slot_and_nothing_without_a_majority() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = patient(&servers.urls()).build()?;
    let permits = [
        locks.semaphore("mail", 2).acquire()?,
        locks.semaphore("mail", 2).acquire()?,
    ];
    let slot = permits[0].slot().to_string();
    let key = |slot: usize| format!("quorlock:slot-{slot}:mail");
    eventually("both are on all nodes", || {
        servers
            .iter()
            .all(|it| it.exists(key(0)) && it.exists(key(1)))
    });
    let mut command = quorlock(&servers);
    command.args([
        "release",
        "mail",
        "--force",
        "--yes",
        "--permits",
        "2",
        "--slot",
        &slot,
    ]);
    let done = stdout(&command.output()?);
    assert_eq!(done.matches("): released\n").count(), 3, "{done}");
    assert!(
        servers
            .iter()
            .all(|it| !it.exists(key(permits[0].slot())) && it.exists(key(permits[1].slot())))
    );

    servers[0].kill()?;
    servers[1].kill()?;
    let unknown = quorlock(&servers)
        .args(["release", "report", "--force", "--yes"])
        .output()?;
    assert_eq!(unknown.status.code(), Some(69), "{}", stdout(&unknown));
    Ok(())
}

#[test]
fn release_prints_no_owner_token() -> TestResult {
    let servers = Servers::start(3)?;
    let (_locks, _guard) = held(&servers);
    let secret = String::from_utf8(servers[0].get("report").unwrap())?;
    let said = quorlock(&servers)
        .args(["release", "report", "--force", "--yes"])
        .output()?;
    let text = format!("{}{}", stdout(&said), stderr(&said));
    assert!(!text.contains(&secret[..8]), "{text}");
    Ok(())
}
