//! The processes of a command are gone before the lock can be anybody else's, whatever happens.
//!
//! These take a ttl or two each, and that is what they are about.

use super::*;
use crate::stalls::on_a_machine_that_runs;

fn start(servers: &Servers, beats: &Beats) -> Running {
    let mut command = quorlock(servers);
    command.env("TMPDIR", beats.folder.path());
    let run = Running::start(
        command
            .arg("run")
            .args(SHORT)
            .args(["report", "--"])
            .args(beats.command()),
    );
    beats.wait_for_all_three();
    run
}

/// Three of five are killed just after an extension. Every majority has one of them, so nobody's validity ends later than a
/// ttl after that.
#[test]
fn all_child_processes_end_before_the_lease_when_a_majority_dies() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(5)?;
        let beats = Beats::new();
        let mut run = start(&servers, &beats);
        // It goes on for longer than a ttl.
        let begun = boot_clock();
        eventually("it is extended", || {
            begun + TTL + 0.5 < boot_clock() && servers[0].pttl("report") > 2_950
        });
        (0..3).try_for_each(|it| servers[it].kill())?;
        let validity_ends = boot_clock() + TTL;

        assert_eq!(run.status(), Some(79));

        beats.wait_until_gone();
        assert!(
            beats.last() < validity_ends,
            "{} < {validity_ends}",
            beats.last()
        );
        assert!(begun + TTL < beats.last(), "it ran for longer than a ttl");
        let said = run.stderr();
        assert!(
            said.contains("no majority of the servers has extended the lock"),
            "{said}"
        );
        Ok(())
    })
}

#[test]
fn a_killed_quorlock_has_no_process_left_before_the_next_holder() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        let (beats, locks) = (Beats::new(), others(&servers));
        let mut run = start(&servers, &beats);
        run.signal(Signal::KILL);
        let (_guard, taken) = next_holder(&locks);
        beats.wait_until_gone();
        assert!(beats.last() < taken, "{} < {taken}", beats.last());
        assert_eq!(run.status(), None);
        let leases = || {
            fs::read_dir(beats.folder.path())
                .unwrap()
                .flatten()
                .filter(|it| it.path().extension().is_some_and(|it| it == "lease"))
        };
        eventually("the guardian has removed the lease", || {
            leases().count() == 0
        });
        assert!(
            run.stderr()
                .contains("quorlock ended unexpectedly: its command was killed")
        );
        Ok(())
    })
}

/// One server never had the lock, and another has lost it: only the key on the third keeps others out.
#[test]
fn all_processes_end_before_the_next_holder_after_removed_keys() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        let (beats, locks) = (Beats::new(), others(&servers));
        servers[0].command(&["SET", "report", "somebody else's"])?;
        let mut run = start(&servers, &beats);
        servers[1].command(&["DEL", "report"])?;
        let (_guard, taken) = next_holder(&locks);
        beats.wait_until_gone();
        assert!(beats.last() < taken, "{} < {taken}", beats.last());
        assert_eq!(run.status(), Some(79));
        Ok(())
    })
}

#[test]
fn a_stopped_quorlock_has_no_process_left_before_the_next_holder() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        let (beats, locks) = (Beats::new(), others(&servers));
        let mut run = start(&servers, &beats);
        stop(&run);
        let stopped = boot_clock();
        let (_guard, taken) = next_holder(&locks);
        eventually("two ttls are over", || stopped + 2.0 * TTL < boot_clock());
        assert!(beats.last() < taken, "{} < {taken}", beats.last());
        let last = beats.last();
        run.signal(Signal::CONT);
        assert_eq!(run.status(), Some(79));
        beats.wait_until_gone();
        assert_eq!(beats.last(), last);
        Ok(())
    })
}

#[test]
fn a_killed_guardian_is_replaced_and_the_second_one_works() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        let (beats, locks) = (Beats::new(), others(&servers));
        let mut run = start(&servers, &beats);
        let first = guardian(&run).ok_or("a guardian")?;
        // It does not end for what ends others: it blocks INT, TERM, HUP and QUIT.
        let blocked = |it: &str| {
            it.strip_prefix("SigBlk:")
                .map(|it| u64::from_str_radix(it.trim(), 16).unwrap_or(0))
        };
        eventually("it blocks signals", || {
            let status =
                fs::read_to_string(format!("/proc/{}/status", first.as_raw_nonzero())).unwrap();
            status
                .lines()
                .find_map(blocked)
                .is_some_and(|it| it & 0x4007 == 0x4007)
        });
        kill_process(first, Signal::KILL)?;
        eventually("there is another one", || {
            guardian(&run).is_some_and(|it| it != first)
        });
        assert!(locks.mutex("report").try_lock().unwrap_err().is_held());
        stop(&run);
        let (_guard, taken) = next_holder(&locks);
        assert!(beats.last() < taken, "{} < {taken}", beats.last());
        run.signal(Signal::CONT);
        assert_eq!(run.status(), Some(79));
        Ok(())
    })
}

#[test]
fn without_a_guardian_the_command_is_ended() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        let beats = Beats::new();
        let mut run = start(&servers, &beats);
        let first = guardian(&run).ok_or("a guardian")?;
        kill_process(first, Signal::KILL)?;
        let mut second = None;
        eventually("there is another one", || {
            second = guardian(&run).filter(|it| *it != first);
            second.is_some()
        });
        kill_process(second.ok_or("a guardian")?, Signal::KILL)?;
        assert_eq!(run.status(), Some(70));
        beats.wait_until_gone();
        assert!(
            !run.stderr().contains("its command was killed"),
            "not by a third one"
        );
        assert_eq!(
            servers.holders("report"),
            0,
            "released, as it was held to the end"
        );
        Ok(())
    })
}

#[test]
fn a_guardian_that_was_stopped_goes_on() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        let mut run =
            Running::start(quorlock(&servers).args(["run", "report", "-c", "echo ready; cat"]));
        assert_eq!(run.line().as_deref(), Some("ready"));
        let guardian = guardian(&run).ok_or("a guardian")?;
        kill_process(guardian, Signal::STOP)?;
        run.signal(Signal::CONT);
        eventually("it goes on", || !is_stopped(guardian));
        run.close_stdin();
        assert_eq!(run.status(), Some(0));
        eventually("it has ended", || test_kill_process(guardian).is_err());
        Ok(())
    })
}

/// TERM comes while the lock is still held, and what `check` says changes with it.
#[test]
fn a_command_has_the_time_between_term_and_kill_and_check_sees_the_loss_come() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(5)?;
        let folder = tempfile::tempdir()?;
        let lost = folder.path().join("lost");
        // Without another program, which would have to be started in time: a shell that waits for a line, and reads two files.
        let line = format!(
            "trap 'read mark end <\"$QUORLOCK_LEASE\"; read now rest </proc/uptime; \
             [ ${{now%.*}} -le ${{end%?????????}} ] && echo held' TERM; \
             echo ready; read line; while {} check 2>/dev/null; do sleep 0.05; done; echo over; sleep 1000",
            env!("CARGO_BIN_EXE_quorlock"),
        );
        let mut command = quorlock(&servers);
        command.args([
            "run",
            "--ttl",
            "4",
            "--response-timeout",
            "800ms",
            "--on-lost",
        ]);
        command.arg(format!(
            "echo \"$QUORLOCK_NAME $QUORLOCK_LOST\" >{}",
            lost.display()
        ));
        let mut run = Running::start(command.args(["report", "-c", &line]));
        assert_eq!(run.line().as_deref(), Some("ready"));
        (0..3).try_for_each(|it| servers[it].kill())?;
        assert_eq!(run.line().as_deref(), Some("held"));
        // "over", if the shell lived to say it: the time of `check` ends with that of the processes.
        assert!([None, Some("over")].contains(&run.line().as_deref()));
        assert_eq!(run.status(), Some(79));
        assert_eq!(fs::read_to_string(lost)?, "report not extended\n");
        Ok(())
    })
}

#[test]
fn a_removed_lock_ends_the_command_and_its_check() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        // Without another program, which would have to be started in time.
        let line = "trap 'read mark end <\"$QUORLOCK_LEASE\"; echo $mark $end; exit 0' TERM; echo ready; read line";
        let mut command = quorlock(&servers);
        command.args([
            "run",
            "--ttl",
            "4",
            "--response-timeout",
            "800ms",
            "report",
            "-c",
            line,
        ]);
        let mut run = Running::start(&mut command);
        assert_eq!(run.line().as_deref(), Some("ready"));
        for server in &servers {
            server.command(&["DEL", "report"])?;
        }
        assert_eq!(
            (run.line().as_deref(), run.status()),
            (Some("kill-at-boottime-ns 0"), Some(79))
        );
        // Which `check` takes for what it is.
        let lease = tempfile::NamedTempFile::new()?;
        fs::write(&lease, "kill-at-boottime-ns 0\n")?;
        assert_eq!(
            bare()
                .arg("check")
                .env("QUORLOCK_LEASE", lease.path())
                .status()?
                .code(),
            Some(79)
        );
        Ok(())
    })
}

/// The command had ended well; but somebody else may have run at the same time.
#[test]
fn a_loss_that_the_release_finds_is_a_loss() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        let mut run = Running::start(quorlock(&servers).args([
            "run",
            "report",
            "-c",
            "echo ready; cat; exit 0",
        ]));
        assert_eq!(run.line().as_deref(), Some("ready"));
        for server in &servers {
            server.command(&["DEL", "report"])?;
        }
        run.close_stdin();
        assert_eq!(run.status(), Some(79));
        assert!(
            run.stderr()
                .contains("before the command ended with status 0")
        );
        Ok(())
    })
}

#[test]
fn check_sees_extensions() -> TestResult {
    on_a_machine_that_runs(|| {
        let servers = Servers::start(3)?;
        // When the file says another time, `check` says that the lock is held for longer than it was at the beginning.
        let line = format!(
            "read mark first <\"$QUORLOCK_LEASE\"; now=$first; \
             while [ $now = $first ]; do sleep 0.05; read mark now <\"$QUORLOCK_LEASE\"; done; \
             [ $first -lt $now ] && {} check",
            env!("CARGO_BIN_EXE_quorlock"),
        );
        let mut command = quorlock(&servers);
        command.args([
            "run",
            "--ttl",
            "6",
            "--response-timeout",
            "1",
            "report",
            "-c",
            &line,
        ]);
        let output = command.output()?;
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        Ok(())
    })
}
