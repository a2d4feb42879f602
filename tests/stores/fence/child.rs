//! A database server, as a process.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use tempfile::TempDir;

/// Runs the server until this process has ended, however it ends, and removes its folder. Deaf to ctrl-c, for the same end.
const GUARD: &str = r#"
trap '' INT TERM HUP
folder=$1; shift
"$@" </dev/null >"$folder/log" 2>&1 &
read -r _
kill -9 $!
wait
rm -rf "$folder"
"#;

/// Neither PostgreSQL nor MariaDB runs as root: there it is this user.
const NOBODY: u32 = 65_534;

/// A user that may run a server.
pub(crate) fn unprivileged(command: &mut Command) -> &mut Command {
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.current_dir("/")
}

/// Ends with this process.
pub(crate) struct Server {
    pub(crate) folder: PathBuf,
    /// Closed with this process.
    _pipe: ChildStdin,
}

/// A folder for a server, below a short path: it has a socket.
pub(crate) fn folder(name: &str) -> Result<PathBuf, String> {
    let folder = TempDir::with_prefix(format!("quorlock-{name}-")).map_err(|e| e.to_string())?;
    let folder = folder.keep();
    if rustix::process::geteuid().is_root() {
        chown(&folder, Some(NOBODY), Some(NOBODY)).map_err(|e| e.to_string())?;
    }
    Ok(folder)
}

impl Server {
    pub(crate) fn start(folder: PathBuf, server: &Command) -> Result<Server, String> {
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard"]).arg(&folder);
        guard.arg(server.get_program()).args(server.get_args());
        for (name, value) in server.get_envs() {
            guard.env(name, value.unwrap_or_default());
        }
        let child = unprivileged(&mut guard).process_group(0);
        let child = child.stdin(Stdio::piped()).spawn();
        let mut child = child.map_err(|err| err.to_string())?;
        let _pipe = child.stdin.take().expect("it is a pipe");
        Ok(Server { folder, _pipe })
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

/// Runs to the end.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let trying = format!("{command:?}");
    let output = command.output().map_err(|err| format!("{trying}: {err}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let done = output.status.success();
    done.then_some(()).ok_or(format!("{trying}: {errors}"))
}

/// Whether the client program connects and does this.
pub(crate) fn answers(command: &mut Command, socket: &Path) -> bool {
    socket.exists() && command.output().is_ok_and(|it| it.status.success())
}
