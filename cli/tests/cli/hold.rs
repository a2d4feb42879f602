//! `quorlock hold`.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::thread;

use devnodes::{Servers, eventually};
use quorlock::LockManager;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::stalls::on_a_machine_that_runs;
use crate::support::*;

/// What the nodes say of a lock, or of the slot of a semaphore.
fn is_free(servers: &Servers, name: &str) -> bool {
    servers
        .iter()
        .all(|it| !it.exists(name) && !it.exists(format!("quorlock:waiting:{name}")))
}

fn nothing_is_left(servers: &Servers, name: &str) {
    eventually("nothing is left on any server", || is_free(servers, name));
}

#[test]
fn signals_ignored_at_the_start_do_not_end_a_hold() -> TestResult {
    let servers = Servers::start(3)?;
    let mut hold = Running::start(&mut ignoring(quorlock(&servers).args(["hold", "report"])));
    let line = hold.line().unwrap();
    assert!(line.starts_with("held "), "{line}");
    for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
        assert!(
            is_ignored(&hold.pid().as_raw_nonzero().to_string(), signal.as_raw()),
            "{signal:?}"
        );
        hold.signal(signal);
    }
    hold.close_stdin();
    assert_eq!(
        (hold.line().as_deref(), hold.status()),
        (Some("released"), Some(0))
    );
    Ok(())
}

/// A lock that somebody else holds, and a `hold` that waits for it.
fn waiting(servers: &Servers, args: &[&str]) -> (LockManager, quorlock::LockGuard, Running) {
    let locks = others(servers);
    let guard = locks.mutex("report").lock().unwrap();
    eventually("it is on all nodes", || servers.holders("report") == 3);
    let hold = Running::start(quorlock(servers).args(args));
    eventually("it waits", || {
        servers
            .iter()
            .all(|it| it.exists("quorlock:waiting:report"))
    });
    (locks, guard, hold)
}

#[test]
fn a_lock_is_held_until_stdin_ends_and_each_token_is_larger_than_the_one_before() -> TestResult {
    let servers = Servers::start(3)?;
    let mut last = 0;
    for _ in 0..2 {
        let mut hold = Running::start(quorlock(&servers).args(["hold", "report"]));
        let line = hold.line().unwrap();
        let token: u64 = line.strip_prefix("held ").ok_or(line.clone())?.parse()?;
        assert!(last < token, "{last}, {token}");
        assert!(is_held(&servers, "report"));
        hold.tell("whatever is said does not end it");
        assert!(is_held(&servers, "report"));

        hold.close_stdin();

        assert_eq!(hold.line().as_deref(), Some("released"));
        assert_eq!((hold.line(), hold.status()), (None, Some(0)));
        nothing_is_left(&servers, "report");
        last = token;
    }
    Ok(())
}

#[test]
fn a_signal_releases_the_held_lock() -> TestResult {
    let servers = Servers::start(3)?;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut hold = Running::start(quorlock(&servers).args(["hold", "report"]));
        assert!(hold.line().unwrap().starts_with("held "));
        hold.signal(signal);
        assert_eq!(
            (hold.line().as_deref(), hold.status()),
            (Some("released"), Some(0)),
            "{signal:?}"
        );
        nothing_is_left(&servers, "report");
    }
    Ok(())
}

#[test]
fn a_signal_ends_the_wait_and_leaves_no_entry_behind() -> TestResult {
    let servers = Servers::start(3)?;
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let (_locks, guard, mut hold) = waiting(&servers, &["hold", "report"]);
        hold.signal(signal);
        assert_eq!(
            (hold.line(), hold.status()),
            (None, Some(status)),
            "{signal:?}"
        );
        eventually("it has left the lists", || {
            servers
                .iter()
                .all(|it| !it.exists("quorlock:waiting:report"))
        });
        assert_eq!(servers.holders("report"), 3, "the other one still holds it");
        drop(guard);
        nothing_is_left(&servers, "report");
    }
    Ok(())
}

#[test]
fn the_end_of_stdin_ends_the_wait_and_a_closed_stdin_is_refused() -> TestResult {
    let servers = Servers::start(3)?;
    let (_locks, guard, mut hold) = waiting(&servers, &["hold", "report"]);
    hold.close_stdin();
    assert_eq!((hold.line(), hold.status()), (None, Some(75)));
    drop(guard);
    nothing_is_left(&servers, "report");

    let closed = quorlock(&servers)
        .args(["hold", "report"])
        .stdin(Stdio::null())
        .output()?;
    assert_eq!(closed.status.code(), Some(64));
    assert!(
        stderr(&closed).contains("--until-signal"),
        "{}",
        stderr(&closed)
    );
    let mut hold = Running::start(quorlock(&servers).args(["hold", "--until-signal", "report"]));
    hold.close_stdin();
    assert!(hold.line().unwrap().starts_with("held "));
    assert!(is_held(&servers, "report"));
    hold.signal(Signal::TERM);
    assert_eq!(
        (hold.line().as_deref(), hold.status()),
        (Some("released"), Some(0))
    );
    Ok(())
}

#[test]
fn a_held_lock_and_a_missing_majority_have_their_own_statuses() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = others(&servers);
    let guard = locks.mutex("report").lock()?;
    for args in [&["-n"][..], &["-w", "0"], &["-w", "200ms"], &["-n", "-s"]] {
        let mut hold = Running::start(quorlock(&servers).arg("hold").args(args).arg("report"));
        assert_eq!((hold.line(), hold.status()), (None, Some(75)), "{args:?}");
        assert!(hold.stderr().contains("held"), "{args:?}");
    }
    drop(guard);
    nothing_is_left(&servers, "report");
    servers[0].kill()?;
    servers[1].kill()?;
    let mut hold = Running::start(quorlock(&servers).args(["hold", "-n", "--json", "report"]));
    assert_eq!((hold.line(), hold.status()), (None, Some(69)));
    let error: Value = serde_json::from_str(&hold.stderr())?;
    assert_eq!(
        (&error["quorlock"], &error["status"]),
        (&1.into(), &69.into())
    );
    Ok(())
}

#[test]
fn a_lock_that_was_taken_away_is_lost_and_that_is_the_status() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        for json in [false, true] {
            let mut command = quorlock(&servers);
            command
                .args(["hold", "--ttl", "6", "--response-timeout", "1", "report"])
                .args(json.then_some("--json"));
            let mut hold = Running::start(&mut command);
            assert!(hold.line().unwrap().contains("held"));
            for server in &servers {
                server.command(&["DEL", "report"])?;
            }
            let line = hold.next_line(|it| !it.contains("renewed")).unwrap();
            if json {
                let line: Value = serde_json::from_str(&line)?;
                assert_eq!(line["event"], "lost");
                assert!(line["reason"].is_string(), "{line}");
            } else {
                assert!(
                    line.starts_with("lost ") && !line.contains("lock lost"),
                    "{line}"
                );
            }
            assert_eq!((hold.line(), hold.status()), (None, Some(79)));
        }
        Ok(())
    })
}

#[test]
fn hold_prints_json_objects_of_extensions_too() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        let mut hold = Running::start(quorlock(&servers).args([
            "hold",
            "--json",
            "--ttl",
            "6",
            "--response-timeout",
            "1",
            "report",
        ]));
        let event = || -> Value { serde_json::from_str(&hold.line().unwrap()).unwrap() };
        let held = event();
        assert_eq!(
            (&held["quorlock"], &held["event"]),
            (&1.into(), &"held".into())
        );
        assert!(
            held["token"].as_u64().is_some_and(|it| 0 < it) && held["slot"].is_null(),
            "{held}"
        );
        assert!(
            held["left"]
                .as_f64()
                .is_some_and(|it| 0.0 < it && it <= 6.0),
            "{held}"
        );
        let renewed = event();
        assert_eq!(
            (&renewed["event"], &renewed["token"]),
            (&"renewed".into(), &held["token"])
        );
        hold.close_stdin();
        let released: Value =
            serde_json::from_str(&hold.next_line(|it| !it.contains("renewed")).unwrap())?;
        assert_eq!(
            (&released["event"], hold.status()),
            (&"released".into(), Some(0))
        );
        Ok(())
    })
}

#[test]
fn readers_hold_together_permits_up_to_their_number_and_several_names_at_once() -> TestResult {
    let servers = Servers::start(3)?;
    let start = |args: &[&str]| {
        Running::start(quorlock(&servers).args(["hold", "-n", "--json"]).args(args))
    };
    let held =
        |hold: &mut Running| -> Value { serde_json::from_str(&hold.line().unwrap()).unwrap() };
    let mut readers = [start(&["-s", "catalog"]), start(&["-s", "catalog"])];
    for reader in &mut readers {
        let held = held(reader);
        assert!(
            held["token"].is_null() && held["last_writer"].is_u64(),
            "{held}"
        );
    }
    assert_eq!(start(&["catalog"]).status(), Some(75));

    let mut permits = [
        start(&["--permits", "2", "mail"]),
        start(&["--permits", "2", "mail"]),
    ];
    let mut slots = permits.each_mut().map(|it| held(it)["slot"].as_u64());
    slots.sort_unstable();
    assert_eq!(slots, [Some(0), Some(1)]);
    assert_eq!(start(&["--permits", "2", "mail"]).status(), Some(75));

    let mut both = start(&["account:7", "account:9"]);
    assert!(held(&mut both)["token"].is_u64());
    assert_eq!(start(&["account:9"]).status(), Some(75));

    for wrong in [
        &["-s", "--permits", "2", "a"][..],
        &["-s", "a", "b"],
        &["--permits", "2", "a", "b"],
        &[],
    ] {
        assert_eq!(start(wrong).status(), Some(64), "{wrong:?}");
    }
    assert_eq!(start(&["--permits", "0", "a"]).status(), Some(64));
    Ok(())
}

#[test]
fn an_unwritable_stdout_ends_the_hold_with_a_status() -> TestResult {
    let servers = Servers::start(3)?;
    let full = File::options().write(true).open("/dev/full")?;
    let mut command = quorlock(&servers);
    command.args(["hold", "--until-signal", "report"]);
    let output = command.stdout(full).output()?;
    assert_eq!(output.status.code(), Some(70));
    let text = stderr(&output);
    assert!(
        text.starts_with("quorlock: stdout: ") && !text.contains("panicked"),
        "{text}"
    );
    nothing_is_left(&servers, "report");

    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let output = command.stdout(writer).output()?;
    assert_eq!(
        (output.status.signal(), stderr(&output).as_str()),
        (Some(13), ""),
        "as SIGPIPE ends a program"
    );
    nothing_is_left(&servers, "report");
    Ok(())
}

/// As a driver that reads the first line and then works.
#[test]
fn a_hold_with_unread_output_ends_with_stdin_a_signal_or_the_lock() -> TestResult {
    thread::scope(|scope| {
        for json in [false, true] {
            for (end, status) in [("stdin", 0), ("a signal", 0), ("the lock", 79)] {
                scope.spawn(move || {
                    let servers = Servers::start(3).unwrap();
                    let mut command = quorlock(&servers);
                    command.args(["hold", "--ttl", "6", "--response-timeout", "1", "report"]);
                    command.args(json.then_some("--json"));
                    let (_reader, writer) = full_pipe();
                    let mut hold = command
                        .stdin(Stdio::piped())
                        .stdout(writer)
                        .spawn()
                        .unwrap();
                    eventually("it is held", || servers.holders("report") == 3);
                    match end {
                        "stdin" => drop(hold.stdin.take()),
                        "a signal" => kill_process(Pid::from_child(&hold), Signal::TERM).unwrap(),
                        _ => servers.iter().for_each(|it| {
                            it.command(&["DEL", "report"]).unwrap();
                        }),
                    }
                    nothing_is_left(&servers, "report");
                    let mut ended = None;
                    eventually("it ends", || {
                        ended = hold.try_wait().unwrap();
                        ended.is_some()
                    });
                    assert_eq!(ended.unwrap().code(), Some(status), "{end} {json}");
                });
            }
        }
    });
    Ok(())
}

/// Extensions in between are left out. What is read in the end has its order.
#[test]
fn a_reader_that_comes_late_gets_the_events_in_order_and_few_extensions() -> TestResult {
    let servers = Servers::start(3)?;
    let mut command = quorlock(&servers);
    command.args([
        "hold",
        "--json",
        "--ttl",
        "3",
        "--response-timeout",
        "700ms",
    ]);
    let (mut reader, writer) = full_pipe();
    let mut hold = command
        .arg("report")
        .stdin(Stdio::piped())
        .stdout(writer)
        .spawn()?;
    // The command has the other end as well, until it is dropped.
    drop(command);
    eventually("it is held", || servers.holders("report") == 3);
    let life = || servers[0].command(&["PTTL", "report"]).unwrap().as_int();
    for _ in 0..2 {
        eventually("it has lived a while", || life() < Some(2_500));
        eventually("it is extended", || Some(2_500) < life());
    }
    let mut unread = vec![b'x'];
    while unread == b"x" {
        reader.read_exact(&mut unread)?;
    }
    drop(hold.stdin.take());
    reader.read_to_end(&mut unread)?;
    let events: Vec<Value> = String::from_utf8(unread)?
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    let words: Vec<_> = events.iter().map(|it| it["event"].clone()).collect();
    assert_eq!(
        (&words[0], &words[words.len() - 1]),
        (&"held".into(), &"released".into())
    );
    assert!(words.len() <= 3, "{words:?}");
    assert_eq!(hold.wait()?.code(), Some(0));
    Ok(())
}

#[test]
fn a_command_with_unread_stderr_still_ends() -> TestResult {
    let servers = Servers::start(3)?;
    let guard = others(&servers).mutex("report").lock()?;
    eventually("it is on all nodes", || servers.holders("report") == 3);
    for args in [
        &["hold", "-n", "report"][..],
        &["hold", "-n", "--json", "report"],
        &["run", "-n", "report", "--", "true"],
    ] {
        let (_reader, writer) = full_pipe();
        let mut command = quorlock(&servers);
        let mut ending = Running::start_with(command.args(args), writer.into());
        assert_eq!(ending.status(), Some(75), "{args:?}");
    }
    drop(guard);
    Ok(())
}

#[test]
fn a_file_behind_stdout_that_cannot_grow_ends_the_hold_with_a_status() -> TestResult {
    let servers = Servers::start(3)?;
    let file = tempfile::NamedTempFile::new()?;
    let limited = ["sh", "-c", "ulimit -f 0; exec \"$0\" \"$@\""];
    let mut command = quorlock(&servers);
    command.args(["hold", "--until-signal", "report"]);
    let output = started_by(&limited, &command)
        .stdout(file.reopen()?)
        .output()?;
    assert_eq!(output.status.code(), Some(70), "{}", stderr(&output));
    nothing_is_left(&servers, "report");
    Ok(())
}

#[test]
fn at_a_terminal_it_holds_until_ctrl_d() -> TestResult {
    let servers = Servers::start(3)?;
    let mut terminal = Terminal::start(quorlock(&servers).args(["hold", "report"]));
    terminal.wait_for("held ");
    terminal.tell("a line does not end it");
    assert!(is_held(&servers, "report"));
    terminal.press(4);
    assert_eq!(terminal.status(), Some(0), "{}", terminal.said());
    terminal.wait_for("released");
    nothing_is_left(&servers, "report");
    Ok(())
}

#[test]
fn a_waiting_terminal_shows_the_holders_of_all_names_and_permits() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = |label| patient(&servers.urls()).owner_label(label).build().unwrap();
    let (one, two) = (locks("one"), locks("two"));
    let _held = (one.mutex("a").lock()?, two.rw_lock("b").read()?);
    let _permits = (
        one.semaphore("mail", 2).acquire()?,
        two.semaphore("mail", 2).acquire()?,
    );
    // They look after a second: so both at once.
    let start = |args: &[&str]| Terminal::start(quorlock(&servers).arg("hold").args(args));
    let (mut names, mut permits) = (start(&["a", "b", "c"]), start(&["--permits", "2", "mail"]));
    names.wait_for("a, b, c: waiting for ");
    names.wait_for("b held by readers (1) for another ");
    assert!(!names.said().contains("c held"), "{}", names.said());
    permits.wait_for("mail: waiting for ");
    permits.wait_for("/one");
    permits.wait_for("/two");
    for terminal in [&mut names, &mut permits] {
        terminal.press(4);
        assert_eq!(terminal.status(), Some(75), "{}", terminal.said());
    }
    Ok(())
}

#[test]
fn a_held_lock_has_the_chosen_status_and_can_be_quiet() -> TestResult {
    let servers = Servers::start(3)?;
    let guard = others(&servers).mutex("report").lock()?;
    for (options, status) in [
        (&["-E", "0"][..], 0),
        (&["-E", "255"], 255),
        (&["-q"], 75),
        (&["-q", "-E", "3"], 3),
    ] {
        let mut hold = Running::start(
            quorlock(&servers)
                .args(["hold", "-n", "report"])
                .args(options),
        );
        assert_eq!(
            (hold.line(), hold.status()),
            (None, Some(status)),
            "{options:?}"
        );
        assert_eq!(hold.stderr().is_empty(), options[0] == "-q", "{options:?}");
    }
    drop(guard);
    nothing_is_left(&servers, "report");
    let mut hold = Running::start(quorlock(&servers).args(["hold", "-v", "report", "deploy"]));
    assert!(hold.line().unwrap().starts_with("held "));
    hold.close_stdin();
    assert_eq!(
        (hold.line().as_deref(), hold.status()),
        (Some("released"), Some(0))
    );
    assert!(
        hold.stderr()
            .starts_with("quorlock: report, deploy: held with token ")
    );
    Ok(())
}
