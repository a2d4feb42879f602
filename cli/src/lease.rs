//! The file with the time until which the processes of a command may run. `quorlock check` reads
//! it. It is also a gate.
//!
//! The gate: a command must not begin before the guardian has its group. So a helper starts first
//! and waits for our lock on the file. When it gets that lock, it becomes the command if the file
//! has a time. If quorlock is killed first, there is none.
//!
//! Behind the time stand the held locks, for calls of quorlock by the command.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, thread};

use rustix::fs::{FlockOperation, flock};

/// The variable with the path of the file.
pub(crate) const VARIABLE: &str = "QUORLOCK_LEASE";

/// The line's lead. The time follows: nanoseconds of the clock that continues while the machine
/// sleeps.
pub(crate) const MARK: &str = "kill-at-boottime-ns ";

#[derive(Debug)]
pub(crate) struct Lease {
    path: PathBuf,
    /// Lines behind the time.
    held: String,
    /// Locked, until the gate is opened.
    file: File,
}

impl Lease {
    /// Makes the file, with a time that is over. The gate is closed. `held`: the lines of
    /// `nested::locks`.
    pub(crate) fn create(path: PathBuf, held: String) -> io::Result<Lease> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        // Removes the file if something fails.
        let lease = Lease { path, held, file };
        flock(&lease.file, FlockOperation::LockExclusive)?;
        lease.set(Duration::ZERO)?;
        Ok(lease)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the command begin.
    pub(crate) fn open_gate(&self, kill_at: Duration) -> io::Result<()> {
        self.set(kill_at)?;
        Ok(flock(&self.file, FlockOperation::Unlock)?)
    }

    /// Overwrites the time in place: the disk may be full by now. If that fails, there is no file
    /// any more: `quorlock check` cannot tell then.
    pub(crate) fn set(&self, kill_at: Duration) -> io::Result<()> {
        // Twice, as a reader may come in the middle, and always as long.
        let time = format!("{MARK}{}\n", kill_at.as_nanos());
        let text = format!("{time}{}{time:\n<80}", self.held);
        let written = self.file.write_all_at(text.as_bytes(), 0);
        written.inspect_err(|_| drop(fs::remove_file(&self.path)))
    }

    /// The lock is no longer held.
    pub(crate) fn end(&self) {
        let _ = self.set(Duration::ZERO);
    }
}

/// A path for a new file, where all of it can be written. XDG_RUNTIME_DIR comes second: the logout
/// of its user empties it.
pub(crate) fn new_path(held: &str) -> io::Result<PathBuf> {
    let name = format!("quorlock-{:016x}.lease", fastrand::u64(..));
    let runtime = env::var_os("XDG_RUNTIME_DIR").unwrap_or_default();
    [env::temp_dir(), runtime.into(), "/dev/shm".into()]
        .map(|folder| folder.join(&name))
        .into_iter()
        .find(|it| it.is_absolute() && Lease::create(it.clone(), held.to_owned()).is_ok())
        .ok_or_else(|| io::Error::other("no folder where a file can be written: set TMPDIR to one"))
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
    Ok(time(&io::read_to_string(file)?))
}

/// The time in the file.
pub(crate) fn read(path: &Path) -> io::Result<Duration> {
    // Again, if it was just being written.
    let mut found = (0..9).map_while(|_| fs::read_to_string(path).ok());
    let found = found.find_map(|it| time(&it));
    found.ok_or_else(|| io::Error::other("no time in it"))
}

/// The time in the text of a file, if any: all times are equal.
pub(crate) fn time(text: &str) -> Option<Duration> {
    let mut times = text.lines().filter_map(|it| it.strip_prefix(MARK));
    let time = times.next()?;
    let nanos = time.parse().ok().filter(|_| times.all(|it| it == time));
    nanos.map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_lease_file_is_private_and_removed_with_its_maker() {
        let path = new_path("held x\n").unwrap();
        let lease = Lease::create(path.clone(), "held x\n".to_owned()).unwrap();
        assert_eq!(read(&path).unwrap(), Duration::ZERO, "the gate is closed");
        lease.open_gate(Duration::from_nanos(7)).unwrap();
        assert_eq!(wait_for_gate(&path).unwrap(), Some(Duration::from_nanos(7)));
        let before = fs::metadata(&path).unwrap();
        lease.set(Duration::from_secs(9)).unwrap();
        assert_eq!(read(&path).unwrap(), Duration::from_secs(9));
        let after = fs::metadata(&path).unwrap();
        assert_eq!(after.permissions().mode() & 0o777, 0o600);
        // It needs no room that a full disk does not have.
        assert_eq!(after.ino(), before.ino());
        lease.end();
        assert_eq!(read(&path).unwrap(), Duration::ZERO);
        assert!(fs::read_to_string(&path).unwrap().contains("\nheld x\n"));
        drop(lease);
        assert!(!path.exists());
    }

    /// Whatever part of a write a reader sees: the old time, the new one or none.
    #[test]
    fn a_time_that_is_half_written_is_none() {
        let text = |time: &str| format!("{MARK}{time}\nheld x\n{MARK}{time}\n\n");
        let (old, new) = (text("00199"), text("00200"));
        for cut in 0..=old.len() {
            let seen = format!("{}{}", &new[..cut], &old[cut..]);
            let time = time(&seen).map(|it| it.as_nanos());
            assert!([None, Some(199), Some(200)].contains(&time), "{seen}");
        }
        assert_eq!(time(&old), Some(Duration::from_nanos(199)));
        for nothing in ["", "x\n", MARK] {
            assert_eq!(time(nothing), None);
        }
    }
}
