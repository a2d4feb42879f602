//! The processes of a command while the lock is held: signals, what is left behind, what is stopped.

use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use super::*;
use crate::stalls::on_a_machine_that_runs;

/// A command and a child of it, which say which signal they got.
const TWO: &str = r#"
    trap 'wait; echo outer; exit 7' TERM HUP
    sh -c 'trap "echo inner; exit" TERM HUP; echo ready; while :; do sleep 0.05; done' &
    while :; do sleep 0.05; done
"#;

#[test]
fn signals_go_to_all_processes_of_the_command() -> TestResult {
    let servers = Servers::start(3)?;
    // A shell without jobs lets its children ignore INT and QUIT: these two are for another test.
    for signal in [Signal::TERM, Signal::HUP] {
        let mut run = Running::start(quorlock(&servers).args(["run", "report", "-c", TWO]));
        assert_eq!(run.line().as_deref(), Some("ready"));
        run.signal(signal);
        let mut said: Vec<_> = std::iter::from_fn(|| run.line()).collect();
        said.sort();
        assert_eq!(
            (said, run.status()),
            (vec!["inner".to_owned(), "outer".to_owned()], Some(7)),
            "{signal:?}"
        );
        assert_eq!(servers.holders("report"), 0);
    }
    Ok(())
}

#[test]
fn each_signal_is_handed_on_and_a_command_that_goes_on_keeps_the_lock() -> TestResult {
    let servers = Servers::start(3)?;
    let line = "for it in INT TERM HUP QUIT USR1 USR2; do trap \"echo $it\" $it; done; echo ready; \
                while :; do sleep 0.05; done";
    let mut run = Running::start(quorlock(&servers).args(["run", "report", "-c", line]));
    assert_eq!(run.line().as_deref(), Some("ready"));
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        run.signal(signal);
        assert_eq!(run.line().as_deref(), Some(name));
        assert!(is_held(&servers, "report"));
    }
    let (command, _) = children(run.pid())
        .into_iter()
        .find(|it| !it.1.contains("__guard"))
        .ok_or("a command")?;
    kill_process(command, Signal::KILL)?;
    assert_eq!(run.status(), Some(137));
    Ok(())
}

/// As service managers do, and init tools by the program of a process.
#[test]
fn a_signal_to_the_unit_to_quorlock_or_to_its_processes_reaches_the_command_once() -> TestResult {
    let servers = Servers::start(3)?;
    let line = "for it in INT TERM HUP QUIT USR1; do trap \"echo $it\" $it; done; trap 'exit 5' USR2; \
                sh -c 'trap \"\" INT TERM HUP QUIT USR1; while :; do sleep 0.05; done' & \
                echo ready; while :; do sleep 0.05; done";
    let mut run = Running::start(quorlock(&servers).args(["run", "report", "-c", line]));
    assert_eq!(run.line().as_deref(), Some("ready"));
    let mut unit = children(run.pid());
    let command = unit.iter().position(|it| !it.1.contains("__guard"));
    let (command, _) = unit.remove(command.ok_or("a command")?);
    let (guardian, _) = unit.pop().ok_or("a guardian")?;
    let all = [
        &[run.pid(), guardian, command][..],
        &children(command)
            .into_iter()
            .map(|it| it.0)
            .collect::<Vec<_>>(),
    ]
    .concat();
    let signals = [
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
    ];
    // Another signal each time: two of one kind could become one.
    let mut next = signals.iter().cycle();
    for _ in 0..7 {
        let (signal, name) = next.next().ok_or("a signal")?;
        // The command first: it has done with it when quorlock gets it.
        for pid in all.iter().rev() {
            // A sleep may have ended.
            let _ = kill_process(*pid, *signal);
            if *pid == command {
                assert_eq!(run.line().as_deref(), Some(*name), "to the unit");
            }
        }
        let (signal, name) = next.next().ok_or("a signal")?;
        run.signal(*signal);
        assert_eq!(run.line().as_deref(), Some(*name), "to quorlock");
        // What `pkill -f quorlock` finds.
        let (signal, name) = next.next().ok_or("a signal")?;
        let both = [run.pid(), guardian].map(|it| it.as_raw_nonzero().to_string());
        let mut kill = Command::new("kill");
        let kill = kill.arg(format!("-{}", signal.as_raw())).args(both);
        assert!(kill.status()?.success());
        assert_eq!(run.line().as_deref(), Some(*name), "to its processes");
    }
    // Behind all others.
    run.signal(Signal::USR2);
    assert_eq!(
        (run.line(), run.status()),
        (None, Some(5)),
        "no signal comes twice"
    );
    Ok(())
}

#[test]
fn signals_ignored_at_the_start_are_ignored_by_the_command() -> TestResult {
    let servers = Servers::start(3)?;
    let mut run = Running::start(&mut ignoring(quorlock(&servers).args([
        "run",
        "report",
        "-c",
        "echo ready; cat",
    ])));
    assert_eq!(run.line().as_deref(), Some("ready"));
    for signal in [
        Signal::HUP,
        Signal::INT,
        Signal::QUIT,
        Signal::TERM,
        Signal::USR1,
        Signal::USR2,
    ] {
        run.signal(signal);
        run.tell("still here");
        assert_eq!(run.line().as_deref(), Some("still here"), "{signal:?}");
    }
    run.close_stdin();
    assert_eq!(run.status(), Some(0));
    Ok(())
}

/// These tests themselves, started by a shell without jobs in its background.
#[test]
fn children_of_these_tests_start_with_default_signals() -> TestResult {
    let mut tests = Command::new(std::env::current_exe()?);
    tests.args([
        "--exact",
        "run::processes::each_signal_is_handed_on_and_a_command_that_goes_on_keeps_the_lock",
    ]);
    let output = ignoring(&tests).output()?;
    let said = stdout(&output);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        stderr(&output)
    );
    Ok(())
}

#[test]
fn processes_that_a_command_leaves_behind_are_ended_before_the_lock_is_free() -> TestResult {
    let servers = Servers::start(3)?;
    for left in [
        "sleep 1000",
        "sh -c \"trap \\\"\\\" TERM; while :; do sleep 0.05; done\"",
    ] {
        let line = format!("{left} >/dev/null 2>&1 & echo $$; exit 3");
        let output = quorlock(&servers)
            .args(["run", "--kill-after", "300ms", "report", "-c", &line])
            .output()?;
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert!(
            test_kill_process_group(pid(&stdout(&output))).is_err(),
            "{left}"
        );
        assert_eq!(servers.holders("report"), 0);
    }
    Ok(())
}

#[test]
fn a_command_that_was_stopped_goes_on() -> TestResult {
    let servers = Servers::start(3)?;
    let mut run = Running::start(quorlock(&servers).args([
        "run",
        "report",
        "-c",
        "echo ready; kill -STOP $$; echo on",
    ]));
    assert_eq!(run.line().as_deref(), Some("ready"));
    assert_eq!((run.line().as_deref(), run.status()), (Some("on"), Some(0)));
    assert!(run.stderr().contains("cannot be suspended"));
    Ok(())
}

/// What we have started waits until we have told the guardian of it. If we do not, because we were killed, it ends.
#[test]
fn a_command_does_not_begin_before_its_guardian_watches() -> TestResult {
    let folder = tempfile::tempdir()?;
    let (lease, began) = (folder.path().join("lease"), folder.path().join("began"));
    for (text, status) in [
        ("", 79),
        ("kill-at-boottime-ns 1\n", 79),
        ("kill-at-boottime-ns 9000000000000000000\n", 0),
    ] {
        let gate = fs::File::create(&lease)?;
        flock(&gate, FlockOperation::LockExclusive)?;
        let mut command = bare();
        command
            .args(["__start", "touch"])
            .arg(&began)
            .env("QUORLOCK_LEASE", &lease);
        let mut start = command.stdin(Stdio::null()).spawn()?;
        let waits = format!("/proc/{}/syscall", start.id());
        // 73 is the number of flock(2) on one kind of machine, 32 on the other.
        let in_flock = |it: String| it.starts_with("73 ") || it.starts_with("32 ");
        eventually("it waits", || {
            fs::read_to_string(&waits).is_ok_and(in_flock)
                || !Path::new("/proc/self/syscall").exists()
        });
        assert!(!began.exists());
        fs::write(&lease, text)?;
        drop(gate);
        assert_eq!(
            (start.wait()?.code(), began.exists()),
            (Some(status), status == 0),
            "{text:?}"
        );
    }
    Ok(())
}

/// A reader of stderr that does not read: no message may keep the lock from being extended.
#[test]
fn unread_messages_delay_no_extension() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        let mut command = quorlock(&servers);
        // The command fills the pipe, and stops itself a few times, about which there would be something to say.
        let line = "echo ready; (trap '' PIPE; dd if=/dev/zero bs=4096 count=64 >&2) & \
                    for it in 1 2 3 4 5; do sleep 0.7; kill -STOP $$; echo $it; done; exit 6";
        let mut run = Running::start(command.arg("run").args(SHORT).args(["report", "-c", line]));
        for said in ["ready", "1", "2", "3", "4", "5"] {
            assert_eq!(run.line().as_deref(), Some(said));
        }
        assert_eq!(run.status(), Some(6));
        Ok(())
    })
}
