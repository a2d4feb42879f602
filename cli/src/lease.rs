//! The file with the time until which the processes of a command may run. `quorlock check` reads it. It is also a gate.
//!
//! The gate: a command must not begin before the guardian has its group. So a helper starts first and waits for our lock on the
//! file. When it gets that lock, it becomes the command if the file has a time. If quorlock is killed first, there is none.
//!
//! Behind the time stand the held locks, for calls of quorlock by the command.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, thread};

use rustix::fs::{FlockOperation, flock};

/// The variable with the path of the file.
pub(crate) const VARIABLE: &str = "QUORLOCK_LEASE";

/// The line's lead. The time follows: nanoseconds of the clock that continues while the machine sleeps.
const MARK: &str = "kill-at-boottime-ns ";

#[derive(Debug)]
pub(crate) struct Lease {
    path: PathBuf,
    /// Lines behind the time.
    held: String,
    /// Locked, until the gate is opened.
    gate: Option<File>,
}

impl Lease {
    /// Makes the file. The gate is closed. `held`: the lines of `nested::locks`.
    pub(crate) fn create(path: PathBuf, held: String) -> io::Result<Lease> {
        let gate = create(&path)?;
        flock(&gate, FlockOperation::LockExclusive)?;
        Ok(Lease {
            path,
            held,
            gate: Some(gate),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the command begin.
    pub(crate) fn open_gate(&mut self, kill_at: Duration) -> io::Result<()> {
        let Some(mut gate) = self.gate.take() else {
            return Ok(());
        };
        // One write, so nobody reads half a time. The end of this function unlocks the file.
        gate.write_all(self.text(kill_at).as_bytes())
    }

    /// Replaces the time. Readers find the old or the new one.
    pub(crate) fn set(&self, kill_at: Duration) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let text = self.text(kill_at);
        let written = create(&new).and_then(|mut file| file.write_all(text.as_bytes()));
        written
            .and_then(|()| fs::rename(&new, &self.path))
            .inspect_err(|_| drop(fs::remove_file(&new)))
    }

    /// The lock is no longer held.
    pub(crate) fn end(&self) {
        if self.set(Duration::ZERO).is_err() {
            // Without a file, `quorlock check` fails as well.
            let _ = fs::remove_file(&self.path);
        }
    }

    fn text(&self, kill_at: Duration) -> String {
        format!("{MARK}{}\n{}", kill_at.as_nanos(), self.held)
    }
}

/// A path for a new file. XDG_RUNTIME_DIR comes second: the logout of its user empties it.
pub(crate) fn new_path() -> io::Result<PathBuf> {
    let name = format!("quorlock-{:016x}.lease", fastrand::u64(..));
    let runtime = env::var_os("XDG_RUNTIME_DIR").unwrap_or_default();
    [env::temp_dir(), runtime.into(), "/dev/shm".into()]
        .map(|folder| folder.join(&name))
        .into_iter()
        .find(|it| it.is_absolute() && create(it).and_then(|_| fs::remove_file(it)).is_ok())
        .ok_or_else(|| io::Error::other("no writable folder: set TMPDIR to one"))
}

/// The file of the surrounding `quorlock run`.
pub(crate) fn surrounding() -> Option<PathBuf> {
    env::var_os(VARIABLE)
        .filter(|it| !it.is_empty())
        .map(PathBuf::from)
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Waits for the gate. Returns the time of the file; none if the gate was never opened.
pub(crate) fn wait_for_gate(path: &Path) -> io::Result<Option<Duration>> {
    let file = File::open(path)?;
    while let Err(err) = flock(&file, FlockOperation::LockShared) {
        if err != rustix::io::Errno::INTR {
            return Err(err.into());
        }
        thread::yield_now();
    }
    read(path)
}

/// The time in the file, if any.
pub(crate) fn read(path: &Path) -> io::Result<Option<Duration>> {
    Ok(time(&fs::read_to_string(path)?))
}

/// The time in the text of a file, if any.
pub(crate) fn time(text: &str) -> Option<Duration> {
    let time = text
        .strip_suffix('\n')
        .and_then(|it| it.lines().find_map(|line| line.strip_prefix(MARK)));
    time.and_then(|it| it.parse().ok())
        .map(Duration::from_nanos)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_lease_is_for_its_owner_alone_and_goes_with_what_made_it() {
        let mut lease = Lease::create(new_path().unwrap(), "held x\n".to_owned()).unwrap();
        let path = lease.path().to_owned();
        assert_eq!(read(&path).unwrap(), None, "the gate is closed");
        lease.open_gate(Duration::from_nanos(7)).unwrap();
        assert_eq!(wait_for_gate(&path).unwrap(), Some(Duration::from_nanos(7)));
        lease.set(Duration::from_secs(9)).unwrap();
        assert_eq!(read(&path).unwrap(), Some(Duration::from_secs(9)));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        lease.end();
        assert_eq!(read(&path).unwrap(), Some(Duration::ZERO));
        drop(lease);
        assert!(!path.exists());
    }
}
