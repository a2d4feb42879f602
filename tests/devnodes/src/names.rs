//! Names that are not resolved.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::clock::preload;

/// Whatever name begins with `slow` is this machine's in the processes that are started with its
/// [environment](SlowNames::environment), and can be kept from being resolved.
///
/// Where a [`Clock`](crate::Clock) is [available](crate::Clock::available), and by the same library.
#[derive(Debug)]
pub struct SlowNames {
    file: PathBuf,
    library: PathBuf,
}

impl SlowNames {
    /// Names that are resolved at once, with files in `folder`, which is not that of a clock.
    pub fn create(folder: &Path) -> Result<Self, Error> {
        let library = preload(folder, "slow names")?;
        Ok(Self {
            file: folder.join("slow"),
            library,
        })
    }

    /// What a process needs in its environment to have these names.
    pub fn environment(&self) -> [(OsString, OsString); 2] {
        let (library, file) = (self.library.clone(), self.file.clone());
        [
            ("LD_PRELOAD".into(), library.into()),
            ("QUORLOCK_SLOW_NAMES".into(), file.into()),
        ]
    }

    /// From now on whoever resolves one of them waits.
    pub fn hang(&self) -> Result<(), Error> {
        File::create(&self.file)
            .map(drop)
            .map_err(|e| Error::of("slow names", e))
    }

    /// They are resolved again, also for those who wait.
    pub fn resolve(&self) -> Result<(), Error> {
        fs::remove_file(&self.file).map_err(|e| Error::of("slow names", e))
    }
}
