//! The program that runs other clients, each in a process of its own; see `benches/peers`.

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::peer::Peer;

/// The clients that the program knows.
pub(crate) const CLIENTS: [&str; 3] = ["rslock-mt", "rslock-ct", "redlock"];

/// The program, built.
pub(crate) struct Peers {
    program: PathBuf,
}

impl Peers {
    /// Builds the program. Where that fails (no network, say) one line tells so, and the bench goes on
    /// without peers.
    pub(crate) fn build() -> Option<Self> {
        println!("building the other clients");
        match build("quorlock-peers", &["--package", "quorlock-peers"]) {
            Ok(program) => Some(Self { program }),
            Err(err) => {
                println!("peers cannot be built, going on without them: {err}");
                None
            }
        }
    }

    /// Starts the program for `client`, one of [`CLIENTS`].
    ///
    /// # Errors
    ///
    /// If the process cannot be started.
    pub(crate) fn start(&self, client: &'static str, urls: &[String]) -> io::Result<Peer> {
        Peer::start(&self.program, client, client, urls)
    }
}

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
