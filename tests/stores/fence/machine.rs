//! What this machine has, or can fetch.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use devnodes::find;

/// Stores and tools whose tests may do nothing where they cannot be had.
pub(crate) const MAY_BE_MISSING: [&str; 3] = ["PostgreSQL", "MariaDB", "curl"];

/// `found`, or nothing and a line on stderr.
pub(crate) fn or_skip<T>(name: &str, found: Result<T, String>) -> Option<T> {
    assert!(MAY_BE_MISSING.contains(&name), "{name} must be there");
    match found {
        Ok(found) => Some(found),
        Err(err) if env::var_os("QUORLOCK_STORES").is_some_and(|it| it == "all") => {
            panic!("{name} is missing: {err}")
        }
        Err(err) => {
            // Not eprintln: the test runner would keep it for itself.
            let _ = writeln!(io::stderr(), "{name} is missing, NOT TESTED: {err}");
            None
        }
    }
}

/// Programs, and where the libraries are that came with them.
#[derive(Clone)]
pub(crate) struct Programs {
    folders: Vec<PathBuf>,
    libraries: OsString,
    /// The folder that the packages are unpacked in, if they are not installed.
    pub(crate) root: Option<PathBuf>,
}

impl Programs {
    /// `wanted` programs, on PATH or in one of `folders`; else from the packages, unpacked.
    pub(crate) fn find(
        name: &str,
        wanted: &[&str],
        folders: impl Fn(&Path) -> Vec<PathBuf>,
        packages: &[&str],
    ) -> Result<Programs, String> {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut here: Vec<_> = env::split_paths(&path).collect();
        here.extend(folders(Path::new("/")));
        let installed = Programs {
            folders: here,
            libraries: OsString::new(),
            root: None,
        };
        if wanted.iter().all(|it| installed.path(it).is_some()) {
            return Ok(installed);
        }
        let root = find::unpacked(name, packages).map_err(|err| err.to_string())?;
        let libraries = below(&root.join("usr/lib")).chain([root.join("usr/lib")]);
        let fetched = Programs {
            folders: folders(&root),
            libraries: env::join_paths(libraries).map_err(|err| err.to_string())?,
            root: Some(root),
        };
        match wanted.iter().find(|it| fetched.path(it).is_none()) {
            Some(lacking) => Err(format!("the packages {packages:?} have no {lacking}")),
            None => Ok(fetched),
        }
    }

    fn path(&self, program: &str) -> Option<PathBuf> {
        let files = self.folders.iter().map(|it| it.join(program));
        files.into_iter().find(|it| it.is_file())
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.path(program).expect("it was found"));
        if !self.libraries.is_empty() {
            command.env("LD_LIBRARY_PATH", &self.libraries);
        }
        command
    }
}

/// The folders in `folder`.
pub(crate) fn below(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    entries.map(|it| it.path()).filter(|it| it.is_dir())
}
