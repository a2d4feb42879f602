//! A command at a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

use devnodes::PATIENCE;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::*;

/// Where the process that becomes `quorlock` finds the terminal.
const TERMINAL: &str = "TEST_TERMINAL";
/// And its arguments, a line each.
const ARGUMENTS: &str = "TEST_ARGUMENTS";

/// `quorlock` as the only program of a terminal, and what comes out of that.
struct Session {
    child: Child,
    keys: File,
    shown: Receiver<Vec<u8>>,
    screen: String,
}

impl Session {
    fn start(servers: &Servers, arguments: &[&str]) -> Session {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let path = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "run::terminal::a_session",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.envs(
            quorlock(servers)
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        command
            .env(TERMINAL, path)
            .env(ARGUMENTS, arguments.join("\n"));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let keys = File::from(ours);
        let (mut screen, (sender, shown)) = (keys.try_clone().unwrap(), channel());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It fails when nobody has the other end any more.
            while let Ok(n @ 1..) = screen.read(&mut bytes) {
                let _ = sender.send(bytes[..n].to_vec());
            }
        });
        Session {
            child,
            keys,
            shown,
            screen: String::new(),
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is shown, behind what was waited for before.
    #[track_caller]
    fn see(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.screen.find(text) {
                self.screen.drain(..at + text.len());
                return;
            }
            match self
                .shown
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(bytes) => self.screen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("{text:?} is not shown, but {:?}", self.screen)
                }
            }
        }
    }

    #[track_caller]
    fn status(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Becomes `quorlock` at the terminal, which is ours alone.
#[test]
#[ignore = "a process of the other tests"]
fn a_session() {
    let (Some(terminal), Ok(arguments)) = (std::env::var_os(TERMINAL), std::env::var(ARGUMENTS))
    else {
        return;
    };
    rustix::process::setsid().unwrap();
    // The first that the leader of a session opens is its own.
    let open = || {
        File::options()
            .read(true)
            .write(true)
            .open(&terminal)
            .unwrap()
    };
    let (stdin, stdout, stderr) = (open(), open(), open());
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorlock"));
    let err = command
        .args(arguments.lines())
        .stdin(stdin)
        .stdout(stdout)
        .stderr(stderr)
        .exec();
    panic!("{err}");
}

#[test]
fn a_command_reads_keys_and_changes_how_the_terminal_works() -> TestResult {
    let servers = Servers::start(3)?;
    // As editors do it: without lines and echo. Whoever does that without being in the foreground is stopped.
    let line = "stty -icanon -echo; echo ready; key=$(dd bs=1 count=1 2>/dev/null); stty sane; echo \"got <$key>\"";
    let mut session = Session::start(&servers, &["run", "report", "-c", line]);
    session.see("ready");
    session.press("k");
    session.see("got <k>");
    assert_eq!(session.status(), Some(0));
    assert!(!session.screen.contains("suspended"));
    Ok(())
}

#[test]
fn the_terminal_is_given_back() -> TestResult {
    let servers = Servers::start(3)?;
    // The outer command reads the terminal after the inner one has ended. It is in a group of its own, that of the outer.
    let inner = format!(
        "{} run inner -c 'read a; echo inner $a'; read b; echo outer $b",
        env!("CARGO_BIN_EXE_quorlock")
    );
    let mut session = Session::start(&servers, &["run", "report", "-c", &inner]);
    session.press("one\n");
    session.see("inner one");
    session.press("two\n");
    session.see("outer two");
    assert_eq!(session.status(), Some(0));
    Ok(())
}

#[test]
fn ctrl_c_ends_the_command_and_its_children() -> TestResult {
    let servers = Servers::start(3)?;
    let mut session = Session::start(
        &servers,
        &["run", "report", "-c", "(echo ready; cat); echo not this"],
    );
    session.see("ready");
    // Its child reads: so nobody is about to start another program, when a shell loses a key.
    session.press("here\n");
    session.see("here\r\nhere");
    session.press("\x03");
    assert_eq!(session.status(), Some(130));
    eventually("it is released", || servers.holders("report") == 0);
    assert!(!session.screen.contains("not this"));
    Ok(())
}

#[test]
fn a_wait_at_a_terminal_shows_the_holder_and_ends_with_ctrl_c() -> TestResult {
    let servers = Servers::start(3)?;
    let locks = others(&servers);
    let guard = locks.mutex("report").lock()?;
    let mut session = Session::start(&servers, &["run", "report", "--", "true"]);
    eventually("it waits", || {
        servers
            .iter()
            .all(|it| it.exists("quorlock:waiting:report"))
    });
    session.see("report: waiting for ");
    session.see(", held by ");
    session.press("\x03");
    assert_eq!(session.status(), Some(130));
    eventually("it has left the lists", || {
        servers.holders("quorlock:waiting:report") == 0
    });
    drop(guard);
    Ok(())
}

#[test]
fn ctrl_z_does_not_suspend_a_command_with_a_lock() -> TestResult {
    let servers = Servers::start(3)?;
    let mut session = Session::start(
        &servers,
        &[
            "run",
            "report",
            "-c",
            "echo ready; read line; echo \"got $line\"",
        ],
    );
    session.see("ready");
    session.press("\x1a");
    session.see("a command that holds a lock cannot be suspended");
    session.press("on\n");
    session.see("got on");
    assert_eq!(session.status(), Some(0));
    Ok(())
}

/// What reads its output is in our group, and needs the terminal itself: so the command gets it only when it wants it.
#[test]
fn a_command_with_piped_output_gets_the_terminal_on_its_first_read() -> TestResult {
    let servers = Servers::start(3)?;
    let line = format!(
        "{} run inner -c 'echo ready >/dev/tty; read a </dev/tty; echo got $a' | sed s/got/seen/",
        env!("CARGO_BIN_EXE_quorlock")
    );
    let mut session = Session::start(&servers, &["run", "report", "-c", &line]);
    session.see("ready");
    session.press("key\n");
    session.see("seen key");
    assert_eq!(session.status(), Some(0));
    Ok(())
}

#[test]
fn a_command_in_the_background_waits_until_it_is_in_the_foreground() -> TestResult {
    let servers = Servers::start(3)?;
    // A shell with jobs, as people have it: the inner quorlock is a job in the background, until `fg`.
    let line = format!(
        "set -m; {} run inner -c 'read a </dev/tty; echo \"got <$a>\"' & read go; fg",
        env!("CARGO_BIN_EXE_quorlock")
    );
    let mut session = Session::start(&servers, &["run", "report", "-c", &line]);
    session.see("the command reads the terminal, but runs in the background");
    session.press("go\n");
    session.press("key\n");
    session.see("got <key>");
    assert_eq!(session.status(), Some(0));
    Ok(())
}
