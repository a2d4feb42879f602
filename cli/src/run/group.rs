//! The process group of a command.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::{env, io};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// A process group: the id of its first process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Group(pub(crate) Pid);

impl Group {
    /// Sends a signal to all processes. Stopped processes continue, so that they receive it.
    ///
    /// Fails for an empty group, and for processes of another user.
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

    /// Whether it has a process. Ended processes count until their parent waits for them.
    pub(crate) fn exists(self) -> bool {
        test_kill_process_group(self.0) != Err(Errno::SRCH)
    }
}

/// This program, for another process in its own group.
pub(crate) fn ourselves(task: &str) -> io::Result<Command> {
    // Not by its path: another version may have replaced it during the wait.
    let ours = Path::new("/proc/self/exe");
    let mut command = if ours.exists() {
        Command::new(ours)
    } else {
        Command::new(env::current_exe()?)
    };
    command.arg0("quorlock").arg(task).process_group(0);
    Ok(command)
}

/// A command line for the user's shell. Users of services have `nologin` or `false` in its place.
pub(crate) fn shell(line: impl AsRef<OsStr>) -> Command {
    let shell = env::var_os("SHELL")
        .filter(|it| it.as_bytes().ends_with(b"sh") && Path::new(it).is_file())
        .unwrap_or_else(|| "/bin/sh".into());
    let mut command = Command::new(shell);
    command.arg("-c").arg(line);
    command
}
