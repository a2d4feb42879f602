//! This test program, run once more for one of its ignored tests: a process to stop and to kill.

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::lock;
use crate::tls::for_children;
use crate::wait::{PATIENCE, eventually};

/// What every line that is meant for the parent begins with.
const SAYS: &str = "child: ";
/// Set in a child.
const IS_CHILD: &str = "QUORLOCK_TEST_CHILD";

/// A process that reads and writes lines. Killed when dropped.
///
/// # Panics
///
/// All of its methods do if the system refuses what they need, and those that wait after [`PATIENCE`].
#[derive(Debug)]
pub struct ChildProcess {
    process: Child,
    says: Mutex<Receiver<String>>,
}

impl ChildProcess {
    /// Runs the ignored test `name`, with these variables beside the environment of this process.
    #[track_caller]
    pub fn start(name: &str, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.args(["--exact", name, "--ignored", "--nocapture"]);
        command.arg("--test-threads=1");
        command.envs(variables).envs(for_children());
        command.env(IS_CHILD, "1");
        // The test harness begins the line.
        Self::run(command, SAYS)
    }

    /// Runs any other program. Its lines for the parent are what comes behind this `mark`.
    #[track_caller]
    pub fn run(mut command: Command, mark: &'static str) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a process is started");
        let out = BufReader::new(process.stdout.take().expect("its output is a pipe"));
        let (sender, says) = mpsc::channel();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some((_, said)) = line.split_once(mark) {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        Self {
            process,
            says: Mutex::new(says),
        }
    }

    /// Waits for what it says next.
    #[track_caller]
    pub fn hear(&self) -> String {
        self.hear_or_end().expect("the child process goes on")
    }

    /// The same; none if it has ended.
    #[track_caller]
    pub fn hear_or_end(&self) -> Option<String> {
        match lock(&self.says).recv_timeout(PATIENCE) {
            Ok(said) => Some(said),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the child process says nothing"),
        }
    }

    /// What it says next, unless that takes longer.
    pub fn hear_within(&self, time: Duration) -> Option<String> {
        lock(&self.says).recv_timeout(time).ok()
    }

    /// Sends it a line. Nothing happens if it has ended.
    pub fn tell(&mut self, line: &str) {
        let input = self.process.stdin.as_mut().expect("its input is a pipe");
        let _ = input.write_all(format!("{line}\n").as_bytes());
    }

    /// Lets one go on that waits for a line.
    pub fn go_on(&mut self) {
        self.tell("");
    }

    /// The process' id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends it a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.id())
            .ok()
            .and_then(Pid::from_raw)
            .expect("an id");
        kill_process(id, signal).expect("the process is there");
    }

    /// Returns when all its threads have stopped.
    #[track_caller]
    pub fn wait_until_stopped(&self) {
        let id = self.id();
        eventually("the process stops", || has_stopped(id));
    }

    /// Waits until it has ended.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the child process ends", || {
            status = self.process.try_wait().expect("it is ours to wait for");
            status.is_some()
        });
        status.expect("it has ended")
    }
}

/// Whether all threads of a process have stopped. Where there is no /proc, the signal has to do.
pub(crate) fn has_stopped(id: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{id}/task")) else {
        return !fs::exists("/proc/self/stat").unwrap_or(false);
    };
    let stats = tasks
        .map_while(Result::ok)
        .map(|it| fs::read_to_string(it.path().join("stat")));
    // The letter behind the name, which may hold anything.
    let state = |it: &str| {
        it.rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    stats.map_while(Result::ok).all(|it| state(&it))
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether this is a child process. Otherwise its ignored test has nothing to do.
pub fn is_child() -> bool {
    env::var_os(IS_CHILD).is_some()
}

/// In a child process: tells the parent.
pub fn say(what: impl Display) {
    println!("{SAYS}{what}");
}
