//! Other clients, each in a process of its own; see `benches/peers` for the program and its protocol.

use std::env;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::stats::{Batch, Samples, Window};

/// The time to live that peers lock with, in milliseconds; ours and the floor use the same.
const TTL_MS: u64 = 10_000;

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
        match build() {
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
        Peer::start(&self.program, client, urls)
    }
}

fn build() -> io::Result<PathBuf> {
    // Set by cargo when it runs a bench; by hand it is the one on the path.
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["build", "--release", "--package", "quorlock-peers"])
        .args(["--message-format", "json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .output()?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        let reason = text.lines().find(|line| line.starts_with("error"));
        return Err(io::Error::other(reason.unwrap_or("cargo failed").to_owned()));
    }
    let messages = String::from_utf8_lossy(&out.stdout);
    // One key of one message, so no JSON reader: a path with quotes in it would be missed, and said so.
    messages
        .lines()
        .filter(|line| line.contains("quorlock-peers"))
        .filter_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next())
        .next_back()
        .map(PathBuf::from)
        .filter(|path| path.is_file())
        .ok_or_else(|| io::Error::other("cargo did not say where the program is"))
}

/// A running client.
pub(crate) struct Peer {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Peer {
    fn start(program: &PathBuf, name: &'static str, urls: &[String]) -> io::Result<Self> {
        let mut child =
            Command::new(program).arg(name).args(urls).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let missing = || io::Error::other("no pipe to the peer");
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        // A thread, because a pipe cannot be read with a deadline. It ends with the process.
        let (sender, lines) = mpsc::channel();
        thread::Builder::new().name(format!("peer {name}")).spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { name, child, input, lines })
    }

    /// Which client this is.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Has `n` pairs run on `key`.
    ///
    /// # Errors
    ///
    /// If there is no answer within `patience`; the peer is of no more use then, for it may hang for ever.
    pub(crate) fn pairs(&mut self, n: usize, key: &str, patience: Duration) -> io::Result<Batch> {
        let line = self.ask(format_args!("pairs {n} {TTL_MS} {key}"), patience)?;
        let mut samples = Samples::default();
        for ns in field::<String>(&line, "samples_ns")?.split(',') {
            if !ns.is_empty() {
                samples.push_ns(ns.parse().map_err(io::Error::other)?);
            }
        }
        Ok(Batch { samples, failed: field(&line, "failed")?, cpu: Duration::from_micros(field(&line, "cpu_us")?) })
    }

    /// Has `threads` threads or tasks run pairs for `window`, a key each.
    ///
    /// # Errors
    ///
    /// As for [`pairs`](Self::pairs), with a patience of ten seconds beyond the window.
    pub(crate) fn threads(&mut self, threads: usize, window: Duration, key: &str) -> io::Result<Window> {
        let patience = window + Duration::from_secs(10);
        let seconds = window.as_secs_f64();
        let request = format_args!("threads {threads} {seconds} {TTL_MS} {key}");
        let line = self.ask(request, patience)?;
        Ok(Window {
            ok: field(&line, "ok")?,
            failed: field(&line, "failed")?,
            elapsed: Duration::from_micros(field(&line, "elapsed_us")?),
            cpu: Duration::from_micros(field(&line, "cpu_us")?),
            p50_us: field::<f64>(&line, "p50_ns")? / 1e3,
            p99_us: field::<f64>(&line, "p99_ns")? / 1e3,
        })
    }

    fn ask(&mut self, request: impl Display, patience: Duration) -> io::Result<String> {
        writeln!(self.input, "{request}")?;
        self.input.flush()?;
        match self.lines.recv_timeout(patience) {
            Ok(line) => match line.strip_prefix("error ") {
                None => Ok(line),
                Some(reason) => Err(io::Error::other(reason.to_owned())),
            },
            Err(RecvTimeoutError::Timeout) => Err(io::Error::other(format!("no answer in {patience:?}"))),
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the peer has ended")),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Killed, not asked to quit: it may be inside a call that never returns.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The value of `key=` in an answer.
fn field<T: FromStr>(line: &str, key: &str) -> io::Result<T> {
    line.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .find(|(it, _)| *it == key)
        .and_then(|(_, value)| value.parse().ok())
        .ok_or_else(|| io::Error::other(format!("no {key} in the answer {line:.80?}")))
}
