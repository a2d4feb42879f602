//! What these tests have in common.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use devnodes::{PATIENCE, Servers, eventually};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) type TestResult = Result<(), Box<dyn std::error::Error>>;

/// The command, for these servers. It sees no options of whoever runs the tests, and a busy machine fails none.
pub(crate) fn quorlock(servers: &Servers) -> Command {
    quorlock_at(&servers.urls())
}

/// The same, for servers at these addresses.
pub(crate) fn quorlock_at(urls: &[String]) -> Command {
    let mut command = bare();
    command.env("QUORLOCK_NODES", urls.join(",")).env("QUORLOCK_NO_QUARANTINE", "true");
    command.env("QUORLOCK_RESPONSE_TIMEOUT", "5").env("QUORLOCK_CONNECT_TIMEOUT", "10");
    command
}

/// The command, without servers.
pub(crate) fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorlock"));
    command.env("SHELL", "/bin/sh");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("QUORLOCK_")) {
        command.env_remove(name);
    }
    command
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The command while it runs. It is killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|it| sender.send(it)));
        Running { child, stdin, lines }
    }

    /// What it says next on stdout; none once it has closed that.
    #[track_caller]
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it says nothing"),
            line => line.ok(),
        }
    }

    /// The next line that fits.
    #[track_caller]
    pub(crate) fn next_line(&self, fits: impl Fn(&str) -> bool) -> Option<String> {
        std::iter::from_fn(|| self.line()).find(|it| fits(it))
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.stdin.as_ref().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Its status, once it has ended by itself; none if a signal has ended it.
    #[track_caller]
    pub(crate) fn status(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// What it said on stderr, once it has ended.
    pub(crate) fn stderr(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
