//! A file that one process has at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::Path;

/// Locked as long as this lives, and not longer than its process does. The file stays.
#[derive(Debug)]
pub(super) struct FileLock {
    file: File,
}

impl FileLock {
    /// `None` if somebody else has it, in this process or another.
    pub(super) fn try_take(path: &Path) -> io::Result<Option<FileLock>> {
        let mut options = OpenOptions::new();
        // What is in it stays until it is locked.
        options.read(true).write(true).create(true).truncate(false);
        lock(&options, path).map(|it| it.map(|file| FileLock { file }))
    }

    /// Says who has it.
    pub(super) fn sign(&mut self, who: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(who.as_bytes())
    }

    /// Who has said so last.
    pub(super) fn holder(path: &Path) -> String {
        let said = std::fs::read(path).unwrap_or_default();
        if said.is_empty() { "somebody".to_owned() } else { String::from_utf8_lossy(&said).into_owned() }
    }
}

/// Each opening of the file has a lock of its own.
#[cfg(unix)]
fn lock(options: &OpenOptions, path: &Path) -> io::Result<Option<File>> {
    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;

    let file = options.open(path)?;
    loop {
        return match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(err) => Err(err.into()),
        };
    }
}

/// Others may read meanwhile, and not write.
#[cfg(windows)]
fn lock(options: &OpenOptions, path: &Path) -> io::Result<Option<File>> {
    use std::os::windows::fs::OpenOptionsExt;

    const SHARE_READ: u32 = 1;
    const SHARING_VIOLATION: i32 = 32;
    match options.clone().share_mode(SHARE_READ).open(path) {
        Err(err) if err.raw_os_error() == Some(SHARING_VIOLATION) => Ok(None),
        result => result.map(Some),
    }
}

#[cfg(not(any(unix, windows)))]
fn lock(_options: &OpenOptions, _path: &Path) -> io::Result<Option<File>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "files cannot be locked on this system"))
}
