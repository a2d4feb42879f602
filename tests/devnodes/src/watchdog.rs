//! A shell that outlives the test process by a moment, to kill its server.
//!
//! It blocks on reading a pipe whose other end only the test process has. However that process ends, the pipe closes,
//! and the watchdog kills the server it was last told of and removes the server's folder.
//!
//! It must never be left knowing a process id that was reaped: the id may be another process's by then. So the
//! server is told to it before it runs, and taken back after it was killed and before it is reaped. Pipes keep order,
//! so it does not matter how late the watchdog reads.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::Error;

/// Not in the test's process group and deaf to the usual signals, so that Ctrl-C ends the test and not the watchdog.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then kill -9 "$pid"; fi
if [ -e "$1" ]; then rm -rf "$1"; fi
"#;

#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
    /// `None` only while dropping.
    pipe: Option<ChildStdin>,
    /// The server's.
    folder: PathBuf,
}

impl Watchdog {
    pub(crate) fn start(folder: &Path) -> Result<Self, Error> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "devnodes-watchdog"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|e| Error::of("starting sh as a watchdog", e))?;
        let pipe = shell.stdin.take();
        Ok(Self {
            shell,
            pipe,
            folder: folder.to_owned(),
        })
    }

    /// From now on, `pid` dies with this process.
    pub(crate) fn watch(&mut self, pid: u32) -> Result<(), Error> {
        self.tell(&format!("{pid}\n"))
    }

    /// The server has ended: there is nothing to kill.
    pub(crate) fn forget(&mut self) -> Result<(), Error> {
        self.tell("\n")
    }

    fn tell(&mut self, line: &str) -> Result<(), Error> {
        let pipe = self
            .pipe
            .as_mut()
            .ok_or_else(|| Error::new("the watchdog was dismissed"))?;
        pipe.write_all(line.as_bytes())
            .map_err(|e| Error::of("telling the watchdog", e))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // One process less for each server than if the shell did it.
        let _ = fs::remove_dir_all(&self.folder);
        self.pipe = None; // end of file: it leaves
        let _ = self.shell.wait();
    }
}
