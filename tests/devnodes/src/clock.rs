//! Wall clocks that are stepped while their process runs.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{Error, lock};

/// The wall clock of the processes that are started with its [environment](Clock::environment): the system's, plus an
/// offset that can be changed at any time. It goes on where it is when such a process starts again.
///
/// Works by a library that is preloaded, `tests/unsafe_parts/clockshim.rs`, so on Linux only, and only in processes that ask the C
/// library for the time. Other clocks than the wall clock are not touched.
#[derive(Debug)]
pub struct Clock {
    file: File,
    path: PathBuf,
    library: PathBuf,
    set: Mutex<Set>,
}

/// What the file says; see `tests/unsafe_parts/clockshim.rs`. Nanoseconds.
#[derive(Debug, Default)]
struct Set {
    writes: i64,
    offset: i64,
    anchor: i64,
    rate_ppm: i64,
}

impl Clock {
    /// Whether there is a library to preload on this system.
    pub fn available() -> bool {
        cfg!(target_os = "linux") && library().is_some()
    }

    /// A clock that shows the system's time, with its files in `folder`: one clock per folder.
    pub fn create(folder: &Path) -> Result<Self, Error> {
        let trying = || format!("a clock in {}", folder.display());
        let (path, library) = (folder.join("clock"), preload(folder, &trying())?);
        let file = File::create_new(&path).map_err(|e| Error::of(trying(), e))?;
        let clock = Self {
            file,
            path,
            library,
            set: Mutex::default(),
        };
        clock.change(|_, _| {})?;
        Ok(clock)
    }

    /// What a process needs in its environment to have this clock.
    pub fn environment(&self) -> [(OsString, OsString); 2] {
        let (library, file) = (self.library.clone(), self.path.clone());
        [
            ("LD_PRELOAD".into(), library.into()),
            ("QUORLOCK_CLOCK_FILE".into(), file.into()),
        ]
    }

    /// Steps the clock forward.
    pub fn step_forward(&self, by: Duration) -> Result<(), Error> {
        let by = nanos(by)?;
        self.change(|set, _| set.offset = set.offset.saturating_add(by))
    }

    /// Steps the clock back.
    pub fn step_back(&self, by: Duration) -> Result<(), Error> {
        let by = nanos(by)?;
        self.change(|set, _| set.offset = set.offset.saturating_sub(by))
    }

    /// Lets the clock run fast from now on, by so many parts per million; slow, if negative. It does not step.
    pub fn set_rate(&self, ppm: i64) -> Result<(), Error> {
        self.change(|set, now| {
            set.offset = set.ahead(now);
            set.anchor = now;
            set.rate_ppm = ppm;
        })
    }

    /// What it shows right now, in nanoseconds since 1970.
    pub(crate) fn now(&self) -> Result<i64, Error> {
        Ok(system_time()?.saturating_add(self.ahead()?))
    }

    /// How far it is ahead of the system's clock right now, in nanoseconds.
    pub fn ahead(&self) -> Result<i64, Error> {
        let now = system_time()?;
        Ok(lock(&self.set).ahead(now))
    }

    fn change(&self, change: impl FnOnce(&mut Set, i64)) -> Result<(), Error> {
        let now = system_time()?;
        let mut set = lock(&self.set);
        change(&mut set, now);
        // Odd while the rest is written.
        self.write(0, &[set.writes.wrapping_add(1)])?;
        self.write(1, &[set.offset, set.anchor, set.rate_ppm])?;
        set.writes = set.writes.wrapping_add(2);
        self.write(0, &[set.writes])
    }

    fn write(&self, from: u64, numbers: &[i64]) -> Result<(), Error> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|it| it.to_ne_bytes()).collect();
        self.file
            .write_all_at(&bytes, from * 8)
            .map_err(|e| Error::of("setting a clock", e))
    }
}

impl Set {
    fn ahead(&self, now: i64) -> i64 {
        let run =
            i128::from(now.saturating_sub(self.anchor)) * i128::from(self.rate_ppm) / 1_000_000;
        self.offset.saturating_add(i64::try_from(run).unwrap_or(0))
    }
}

/// The library, in `folder`, to be preloaded for what is `trying`.
pub(crate) fn preload(folder: &Path, trying: &str) -> Result<PathBuf, Error> {
    let built = library().filter(|_| cfg!(target_os = "linux"));
    let built =
        built.ok_or_else(|| Error::of(trying, "there is a library to preload on Linux only"))?;
    // Under a name without blanks, which the loader would take for the end of it.
    let library = folder.join("clock.so");
    symlink(built, &library).map_err(|e| Error::of(trying, e))?;
    Ok(library)
}

/// The library, which cargo has built beside this program: tests and benches are in `deps` themselves, examples next
/// to it.
fn library() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let folder = program.parent()?;
    let folders = [
        folder.to_path_buf(),
        folder.join("deps"),
        folder.join("../deps"),
    ];
    let files = folders
        .iter()
        .filter_map(|it| fs::read_dir(it).ok())
        .flatten()
        .map_while(Result::ok);
    let is_library = |path: &Path| {
        let name = path.file_name().and_then(|it| it.to_str());
        name.is_some_and(|it| it.starts_with("libclockshim") && it.ends_with(".so"))
    };
    let libraries = files.map(|it| it.path()).filter(|it| is_library(it));
    // The newest, should an older cargo have left another.
    libraries.max_by_key(|it| fs::metadata(it).and_then(|it| it.modified()).ok())
}

fn system_time() -> Result<i64, Error> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(|e| Error::of("reading the clock", e))?;
    nanos(now)
}

fn nanos(time: Duration) -> Result<i64, Error> {
    i64::try_from(time.as_nanos()).map_err(|e| Error::of("a time in nanoseconds", e))
}
