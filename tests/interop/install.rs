//! The other clients' packages, below cargo's target folder. Nothing is installed on the system.
//!
//! Each set is made in a stage beside its final place and moved there in one step, so that neither an interrupted run
//! nor two at a time leave half of one behind. Its place is named after what was pinned: new pins, new folder.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::OnceLock;

/// `cargo clean` removes it.
const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/interop");

/// Decided once per process.
type Found = OnceLock<Result<PathBuf, String>>;

/// The folder for PYTHONPATH. Downloads on the first call ever.
pub(crate) fn python() -> Result<&'static Path, String> {
    static FOUND: Found = OnceLock::new();
    let pins = [("requirements.txt", include_str!("requirements.txt"))];
    installed(&FOUND, "python", &pins, |stage| {
        // No dependencies: the list has them all. mmh3, which pottery names, is compiled, and its
        // locks do without.
        let options = "-m pip install --quiet --disable-pip-version-check --no-input \
                       --root-user-action=ignore --retries 5 --no-deps --require-hashes";
        let mut pip = Command::new("python3");
        pip.args(options.split_whitespace());
        pip.arg("--target").arg(stage).arg("--requirement");
        pip.arg(stage.join("requirements.txt"));
        pip
    })
}

/// The folder that holds node_modules. Downloads on the first call ever.
pub(crate) fn node() -> Result<&'static Path, String> {
    static FOUND: Found = OnceLock::new();
    let pins = [
        ("package.json", include_str!("package.json")),
        ("package-lock.json", include_str!("package-lock.json")),
    ];
    installed(&FOUND, "node", &pins, |stage| {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--prefix"]).arg(stage).current_dir(stage);
        npm.args(["--ignore-scripts", "--no-audit", "--no-fund"]);
        npm.args(["--no-update-notifier", "--loglevel=error"]);
        npm
    })
}

/// The folder with what these files pin, made by a command if it is not there.
fn installed(
    found: &'static Found,
    name: &str,
    pins: &[(&str, &str)],
    install: impl Fn(&Path) -> Command,
) -> Result<&'static Path, String> {
    let make = || {
        let mut hasher = DefaultHasher::new();
        pins.hash(&mut hasher);
        let place = Path::new(FOLDER).join(format!("{name}-{:016x}", hasher.finish()));
        if place.is_dir() {
            return Ok(place);
        }
        let stage = Path::new(FOLDER).join(format!("{name}-stage-{}", process::id()));
        let said = |err: std::io::Error| format!("{}: {err}", stage.display());
        let _ = fs::remove_dir_all(&stage); // of an earlier process that had this id
        fs::create_dir_all(&stage).map_err(said)?;
        for (file, text) in pins {
            fs::write(stage.join(file), text).map_err(said)?;
        }
        run(&mut install(&stage))?;
        // A place that exists by now was made by another process, and is as good.
        match fs::rename(&stage, &place) {
            Err(err) if !place.is_dir() => Err(said(err)),
            _ => Ok(place),
        }
    };
    let made = found.get_or_init(make).as_deref();
    made.map_err(|err| format!("{name} of the other clients could not run: {err}"))
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|err| format!("{name} does not start: {err}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{name}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}
