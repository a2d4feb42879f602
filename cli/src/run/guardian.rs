//! The guardian: a process that kills the command's group if quorlock is killed, stopped, hung or
//! starved.
//!
//! It runs the same program in a group of its own and reads a pipe. The first line is the group.
//! Each extension sends the new time at which the group must be gone. When that time passes, or the
//! pipe ends without `done`, it kills the group and removes the lease.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};
use std::thread::park_timeout;
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::clock;
use crate::exit::Exit;
use crate::run::group::{Group, ourselves};
use crate::signals::is_in_row;
use crate::stderr::say;

/// The argument of this task.
pub(crate) const TASK: &str = "__guard";

/// The last line.
const DONE: &str = "done";

/// The interval of looks at the clock: waits do not count the sleep of the machine.
const LOOK: Duration = Duration::from_secs(1);

/// The writing end, in quorlock.
#[derive(Debug)]
pub(crate) struct Guardian {
    process: Child,
}

impl Guardian {
    /// Starts it for the file `lease`, which need not be there yet.
    pub(crate) fn start(lease: &Path) -> io::Result<Guardian> {
        let mut command = ourselves(TASK)?;
        // It needs none of our variables, and no secrets.
        let process = command
            .arg(lease)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Guardian { process })
    }

    /// Sends the group, and the first time.
    pub(crate) fn watch(&mut self, group: Group, kill_at: Duration) -> io::Result<()> {
        let first = format!("{}\n{}\n", group.0.as_raw_nonzero(), kill_at.as_nanos());
        self.write(&first)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Sends another time. `Job::reap` finds a guardian that has ended.
    pub(crate) fn set(&mut self, kill_at: Duration) {
        let _ = self.write(&format!("{}\n", kill_at.as_nanos()));
    }

    /// Whether it gets this signal too. Blocks for 0.1 s, in which a service manager signals all
    /// processes of a unit.
    pub(crate) fn has_got(&mut self, signal: i32) -> bool {
        park_timeout(LOOK / 10);
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let has_got = is_in_row(&status.unwrap_or_default(), "ShdPnd:", signal);
        if has_got {
            let _ = self.write("\n");
        }
        has_got
    }

    /// The group is gone.
    pub(crate) fn dismiss(mut self) {
        let _ = self.write(&format!("{DONE}\n"));
        // A stopped guardian would stay forever.
        let _ = kill_process(self.pid(), Signal::CONT);
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        match &mut self.process.stdin {
            Some(pipe) => pipe.write_all(line.as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// The work of the guardian process.
pub(crate) fn guard(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let lease = arguments.next().map(PathBuf::from);
    // They stay pending, where quorlock sees them. Fails for invalid sets only.
    let _ = SigSet::all().thread_block();
    let mut heard = Heard::default();
    let why = loop {
        match heard.listen() {
            Ok(true) => {}
            Ok(false) if heard.done => return ExitCode::SUCCESS,
            Ok(false) => break "quorlock ended unexpectedly",
            Err(_) => break "the pipe from quorlock failed",
        }
        if heard.done {
            return ExitCode::SUCCESS;
        }
        if heard.kill_at.is_some_and(|it| it <= clock::now()) {
            break "quorlock was stopped or starved, and the lock is about to expire";
        }
    };
    // Fails only for an empty group, or another user's.
    let _ = heard.group.map(|it| it.signal(Signal::KILL));
    if let Some(lease) = lease {
        let _ = fs::remove_file(lease);
    }
    if heard.group.is_none() {
        return ExitCode::SUCCESS;
    }
    say(&format!("{why}: its command was killed"));
    Exit::LOST.code()
}

/// The received lines.
#[derive(Debug, Default)]
struct Heard {
    /// The beginning of a line.
    rest: Vec<u8>,
    group: Option<Group>,
    kill_at: Option<Duration>,
    done: bool,
}

impl Heard {
    /// Waits for lines, or until it is time to look. False at the end of the pipe.
    fn listen(&mut self) -> io::Result<bool> {
        let stdin = io::stdin();
        let wait = self
            .kill_at
            .map_or(LOOK, |it| it.saturating_sub(clock::now()).min(LOOK));
        let wait = Timespec::try_from(wait).unwrap_or_default();
        let ready = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&wait));
        let mut bytes = [0; 4096];
        let read = match ready {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(true),
            Ok(_) => rustix::io::read(&stdin, &mut bytes),
            Err(err) => Err(err),
        };
        match read {
            Ok(0) => return Ok(false),
            Ok(n) => bytes.iter().take(n).for_each(|it| self.take(*it)),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(err) => return Err(err.into()),
        }
        Ok(true)
    }

    fn take(&mut self, byte: u8) {
        if byte != b'\n' {
            return self.rest.push(byte);
        }
        let line = std::mem::take(&mut self.rest);
        let line = String::from_utf8_lossy(&line);
        if line == DONE {
            self.done = true;
        } else if line.is_empty() {
            // One is pending: quorlock has seen it.
            let _ = SigSet::all().wait();
        } else if self.group.is_none() {
            self.group = line.parse().ok().and_then(Pid::from_raw).map(Group);
        } else {
            self.kill_at = line.parse().ok().map(Duration::from_nanos).or(self.kill_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_to_the_guardian_are_read_in_any_split() {
        let mut heard = Heard::default();
        b"4711\n1000\n20".iter().for_each(|it| heard.take(*it));
        assert_eq!(heard.group, Pid::from_raw(4711).map(Group));
        assert_eq!(
            heard.kill_at,
            Some(Duration::from_nanos(1000)),
            "half a line is none"
        );
        b"00\nnonsense\n".iter().for_each(|it| heard.take(*it));
        assert_eq!(
            (heard.kill_at, heard.done),
            (Some(Duration::from_nanos(2000)), false)
        );
        b"done\n".iter().for_each(|it| heard.take(*it));
        assert!(heard.done);
    }
}
