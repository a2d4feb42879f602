//! The processes of a command: the group that it was started in.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::{env, io};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// A group of processes, called by the id of the process that it began with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Group(pub(crate) Pid);

impl Group {
    /// To all that are in it; one that has stopped goes on, else it would not hear of it.
    ///
    /// Fails if nobody is in it any more, or only processes of another user.
    pub(crate) fn signal(self, signal: Signal) -> Result<(), Errno> {
        kill_process_group(self.0, signal)?;
        if signal != Signal::KILL {
            self.go_on();
        }
        Ok(())
    }

    pub(crate) fn go_on(self) {
        let _ = kill_process_group(self.0, Signal::CONT);
    }

    /// Whether anybody is in it, be it one that has ended and was not waited for.
    pub(crate) fn exists(self) -> bool {
        test_kill_process_group(self.0) != Err(Errno::SRCH)
    }
}

/// Ourselves, as another process, in a group of its own.
pub(crate) fn ourselves(task: &str) -> io::Result<Command> {
    // Not by its path where that can be: it may have been replaced by another version while we waited.
    let ours = Path::new("/proc/self/exe");
    let mut command = if ours.exists() { Command::new(ours) } else { Command::new(env::current_exe()?) };
    command.arg0("quorlock").arg(task).process_group(0);
    Ok(command)
}

/// A line for the user's shell.
pub(crate) fn shell(line: impl AsRef<OsStr>) -> Command {
    let shell = env::var_os("SHELL").filter(|it| !it.is_empty()).unwrap_or_else(|| "/bin/sh".into());
    let mut command = Command::new(shell);
    command.arg("-c").arg(line);
    command
}
