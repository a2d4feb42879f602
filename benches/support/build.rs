//! Programs of the workspace that are no part of the benches.

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Builds a program of this workspace with cargo, and says where it is.
pub(crate) fn build(name: &str, args: &[&str]) -> io::Result<PathBuf> {
    // Set by cargo when it runs a bench; by hand it is the one on the path.
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // As this program: `--profile dev` is to see that it works, and need not build everything again.
    let profile = if cfg!(debug_assertions) {
        "dev"
    } else {
        "release"
    };
    let out = Command::new(cargo)
        .args(["build", "--profile", profile, "--message-format", "json"])
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .output()?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        let reason = text.lines().find(|line| line.starts_with("error"));
        return Err(io::Error::other(
            reason.unwrap_or("cargo failed").to_owned(),
        ));
    }
    let messages = String::from_utf8_lossy(&out.stdout);
    // One key of one message, so no JSON reader: a path with quotes in it would be missed, and said so.
    messages
        .lines()
        .filter(|line| line.contains(name))
        .filter_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next())
        .next_back()
        .map(PathBuf::from)
        .filter(|path| path.is_file())
        .ok_or_else(|| io::Error::other("cargo did not say where the program is"))
}
