//! This test binary, run once more for one of its ignored tests: a process to stop and to kill.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;
use devnodes::{PATIENCE, eventually};
use rustix::process::{Pid, Signal, kill_process};

const IS_CHILD: &str = "QUORLOCK_CAMPAIGN_CHILD";
const SAYS: &str = "child: ";

/// A process that obeys. Killed when dropped.
pub(crate) struct ChildProcess {
    process: Child,
    says: Receiver<String>,
}

impl ChildProcess {
    /// Runs the ignored test `name`, which begins with [`orders`].
    ///
    /// The calling thread has to outlive the process: it dies with it.
    pub(crate) fn start(name: &str, environment: impl IntoIterator<Item = (OsString, OsString)>) -> ChildProcess {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
            .env(IS_CHILD, "1")
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let (sender, says) = crossbeam_channel::unbounded();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // The test harness begins the line.
                if let Some((_, said)) = line.split_once(SAYS) {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        ChildProcess { process, says }
    }

    /// Waits for what it says next.
    #[track_caller]
    pub(crate) fn hear(&self) -> String {
        self.hear_within(PATIENCE).expect("the child process says something")
    }

    /// What it says next, unless that takes longer.
    pub(crate) fn hear_within(&self, time: Duration) -> Option<String> {
        self.says.recv_timeout(time).ok()
    }

    /// Tells it a line. One that is dead hears nothing.
    pub(crate) fn tell(&mut self, line: &str) {
        let _ = self.process.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        kill_process(id, signal).unwrap();
    }

    /// Returns when all its threads have stopped.
    #[track_caller]
    pub(crate) fn wait_until_stopped(&self) {
        let tasks = format!("/proc/{}/task", self.process.id());
        eventually("the process stops", || {
            // Where there is no /proc, the signal has to do.
            let Ok(tasks) = fs::read_dir(&tasks) else { return !fs::exists("/proc/self/stat").unwrap_or(false) };
            let stats = tasks.map_while(Result::ok).map(|it| fs::read_to_string(it.path().join("stat")));
            // The letter behind the name, which may hold anything.
            let state = |it: &str| it.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'));
            stats.map_while(Result::ok).all(|it| state(&it))
        });
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the child process ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In a child process: what the parent tells. `None` if this is no child process, and then there is nothing to do.
pub(crate) fn orders() -> Option<impl Iterator<Item = String> + Send + 'static> {
    env::var_os(IS_CHILD)?;
    // One that is stopped would not notice that its parent is gone.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    Some(BufReader::new(stdin()).lines().map_while(Result::ok))
}

/// In a child process: tells the parent.
pub(crate) fn say(what: impl std::fmt::Display) {
    println!("{SAYS}{what}");
}
