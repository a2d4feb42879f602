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

const REQUIREMENTS: &str = include_str!("requirements.txt");
const PACKAGE: &str = include_str!("package.json");
const PACKAGE_LOCK: &str = include_str!("package-lock.json");

/// The folder for PYTHONPATH. Downloads on the first call ever; decided once per process.
pub(crate) fn python() -> Result<&'static Path, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        runs("python3", &["--version"])?;
        installed("python", &[REQUIREMENTS], |stage| {
            runs("python3", &["-m", "pip", "--version"])?;
            let list = stage.join("requirements.txt");
            write(&list, REQUIREMENTS)?;
            let mut pip = Command::new("python3");
            // No dependencies: the list has them all. mmh3, which pottery names, is compiled, and its locks do without.
            let options = "-m pip install --quiet --disable-pip-version-check --no-input \
                           --root-user-action=ignore --retries 5 --no-deps --require-hashes";
            pip.args(options.split_whitespace());
            pip.arg("--target")
                .arg(stage)
                .arg("--requirement")
                .arg(list);
            run(&mut pip)
        })
    });
    found.as_deref().map_err(Clone::clone)
}

/// The folder that holds node_modules. Downloads on the first call ever; decided once per process.
pub(crate) fn node() -> Result<&'static Path, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        runs("node", &["--version"])?;
        installed("node", &[PACKAGE, PACKAGE_LOCK], |stage| {
            runs("npm", &["--version"])?;
            write(&stage.join("package.json"), PACKAGE)?;
            write(&stage.join("package-lock.json"), PACKAGE_LOCK)?;
            let mut npm = Command::new("npm");
            npm.args(["ci", "--prefix"]).arg(stage).current_dir(stage);
            npm.args(["--ignore-scripts", "--no-audit", "--no-fund"]);
            run(npm.args(["--no-update-notifier", "--loglevel=error"]))
        })
    });
    found.as_deref().map_err(Clone::clone)
}

/// The folder with what `pins` say, made by `install` if it is not there.
fn installed(
    name: &str,
    pins: &[&str],
    install: impl Fn(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    pins.hash(&mut hasher);
    let place = Path::new(FOLDER).join(format!("{name}-{:016x}", hasher.finish()));
    let stage = Path::new(FOLDER).join(format!("{name}-stage-{}", process::id()));
    if !place.is_dir() {
        let _ = fs::remove_dir_all(&stage); // of an earlier process that had this id
        fs::create_dir_all(&stage).map_err(|err| format!("{}: {err}", stage.display()))?;
        install(&stage)?;
        let moved = fs::rename(&stage, &place);
        // A place that exists by now was made by another process, and is as good.
        moved.or_else(|err| place.is_dir().then_some(()).ok_or(err.to_string()))?;
    }
    Ok(place)
}

fn runs(program: &str, args: &[&str]) -> Result<(), String> {
    run(Command::new(program).args(args))
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

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|err| format!("{}: {err}", file.display()))
}
