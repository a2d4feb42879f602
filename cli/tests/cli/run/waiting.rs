//! Signals while a lock is waited for.

use super::*;

const SIGNALS: [(Signal, i32); 4] = [
    (Signal::INT, 130),
    (Signal::TERM, 143),
    (Signal::HUP, 129),
    (Signal::QUIT, 131),
];

fn is_waiting(servers: &Servers) -> bool {
    servers
        .iter()
        .all(|it| it.exists("quorlock:waiting:report"))
}

#[test]
fn a_signal_ends_the_wait_at_once_and_leaves_no_entry_behind() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = others(&servers);
    for (signal, status) in SIGNALS {
        let guard = locks.mutex("report").lock()?;
        eventually("it is on all nodes", || servers.holders("report") == 3);
        let mut run =
            Running::start(quorlock(&servers).args(["run", "report", "--", "echo", "ran"]));
        eventually("it waits", || is_waiting(&servers));
        run.signal(signal);
        assert_eq!(
            (run.line(), run.status()),
            (None, Some(status)),
            "{signal:?}"
        );
        eventually("it has left the lists", || {
            servers.holders("quorlock:waiting:report") == 0
        });
        assert_eq!(servers.holders("report"), 3, "the other one still holds it");
        guard.release()?;
    }
    Ok(())
}

#[test]
fn a_waiting_run_gets_the_lock_and_prints_its_wait() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = others(&servers);
    let guard = locks.mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);
    let mut run =
        Running::start(quorlock(&servers).args(["run", "-v", "report", "--", "echo", "ran"]));
    eventually("it waits", || is_waiting(&servers));
    guard.release()?;
    assert_eq!(
        (run.line().as_deref(), run.status()),
        (Some("ran"), Some(0))
    );
    assert!(
        run.stderr()
            .starts_with("quorlock: report: held with token ")
    );
    Ok(())
}

#[test]
fn a_verbose_wait_reports_the_holder_without_a_terminal() -> TestResult {
    let servers = Servers::start(3)?;
    let guard = others(&servers).mutex("report").lock()?;
    let wait = |verbose: &[&str]| {
        let mut command = quorlock(&servers);
        command
            .args(["run", "-w", "2"])
            .args(verbose)
            .args(["report", "--", "true"]);
        stderr(&command.output().unwrap())
    };
    let text = wait(&["-v"]);
    assert!(
        text.starts_with("quorlock: report: waiting for ") && text.contains(", held by "),
        "{text}"
    );
    assert!(!wait(&[]).contains("waiting for"));
    drop(guard);
    Ok(())
}

/// A signal comes at any time between the start and the command: the command runs or it does not, and nothing is left.
#[test]
fn a_signal_beside_the_grant_leaves_no_key_and_no_process() -> TestResult {
    let servers = Servers::start(3)?;
    for delay in 0..12 {
        let mut run =
            Running::start(quorlock(&servers).args(["run", "report", "--", "sleep", "1000"]));
        let begun = std::time::Instant::now();
        let due = || delay * 4 <= begun.elapsed().as_millis();
        eventually("the time has come", || {
            due() && (delay < 6 || servers.holders("report") > 0)
        });
        run.signal(Signal::TERM);
        assert!(
            matches!(run.status(), Some(143) | None),
            "its own, that of the command, or before it listened"
        );
        eventually("nothing is left", || {
            ["report", "quorlock:waiting:report"]
                .iter()
                .all(|it| servers.holders(it) == 0)
        });
    }
    Ok(())
}

#[test]
fn a_run_that_waits_for_new_servers_shows_the_quarantine() -> TestResult {
    let servers = Servers::start(3)?;
    let mut run = quorlock(&servers);
    run.env_remove("QUORLOCK_NO_QUARANTINE");
    let run = Terminal::start(run.args(["run", "report", "-c", "true"]));
    run.wait_for("s, servers in quarantine: no vote for ");
    run.wait_for(" more; if new and never used: quorlock vouch\r\n");
    Ok(())
}

/// Names that would colour a terminal, write lines of their own or turn its text around.
#[test]
fn lock_names_are_escaped_in_output() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = others(&servers);
    for (name, shown) in [
        ("\x1b[31mred", "\\u{1b}[31mred"),
        ("a\nquorlock: b", "a\\nquorlock: b"),
        ("\u{202e}gnp", "\\u{202e}gnp"),
        ("ünï s", "ünï s"),
    ] {
        let guard = locks.mutex(name).lock()?;
        let run = |args: &[&str]| {
            let output = quorlock(&servers).args(args).output().unwrap();
            let text = stderr(&output);
            let lines = text.lines().filter(|it| it.contains(shown)).count();
            let others = ["held by ", "no quorum", "the key "];
            let is_other = |it: &str| others.iter().any(|other| it.contains(other));
            let known = text.lines().filter(|it| it.contains(shown) || is_other(it));
            assert_eq!(known.count(), text.lines().count(), "{args:?} {text:?}");
            assert!(
                !text.contains('\x1b') && !text.contains('\u{202e}'),
                "{text:?}"
            );
            lines
        };
        run(&["run", "-v", "-w", "1.5", "-E", "0", name, "--", "true"]);
        drop(guard);
        assert_eq!(run(&["run", "-v", name, "--", "true"]), 1);
        assert_eq!(run(&["run", "-v", name, "other", "--", "true"]), 1);
        // Both the name and the chain have it.
        let nested = [
            "run",
            name,
            "--",
            env!("CARGO_BIN_EXE_quorlock"),
            "run",
            name,
            "--",
            "true",
        ];
        assert_eq!(run(&nested), 1);
        for server in &servers {
            server.command(&["LPUSH", name, "x"])?;
        }
        run(&["run", "-n", name, "other", "--", "true"]);
    }
    Ok(())
}
