//! A client in a process of its own: another one, or ours. It is told what to do one line at a time, and answers
//! each with one line; `benches/peers/main.rs` and `worker.rs` describe them.

use std::env;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::floor::process as floor;
use super::line::field;
use super::sections::{Job, Report};
use super::stats::{Batch, Samples, Window};
use super::worker;

/// The program that runs the other clients, and those that it knows.
const PROGRAM: &str = env!("CARGO_BIN_EXE_quorlock-peers");
pub(crate) const CLIENTS: [&str; 3] = ["rslock-mt", "rslock-ct", "redlock"];

/// The time to live that peers lock with, in milliseconds; ours and the floor use the same.
const TTL_MS: u64 = 10_000;
/// How long an answer may take that comes when somebody else lets go of a lock.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running client.
pub(crate) struct Peer {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

/// When a lock was asked for and when it was there, on the [shared clock](super::stats::shared_clock).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Locked {
    pub(crate) called: u64,
    pub(crate) at: u64,
}

impl Peer {
    /// One of [`CLIENTS`].
    ///
    /// # Errors
    ///
    /// If the process cannot be started.
    pub(crate) fn other(client: &'static str, urls: &[String]) -> io::Result<Self> {
        Self::start(Path::new(PROGRAM), client, client, urls)
    }

    /// Runs `program`, which finds its client in the first argument and the servers in the others.
    ///
    /// # Errors
    ///
    /// If the process cannot be started.
    pub(crate) fn start(
        program: &Path,
        client: &str,
        name: &'static str,
        urls: &[String],
    ) -> io::Result<Self> {
        let mut child = Command::new(program)
            .arg(client)
            .args(urls)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("no pipe to the peer");
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        // A thread, because a pipe cannot be read with a deadline. It ends with the process.
        let (sender, lines) = mpsc::channel();
        thread::Builder::new()
            .name(format!("peer {name}"))
            .spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self {
            name,
            child,
            input,
            lines,
        })
    }

    /// Runs this program once more, with a manager of ours.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub(crate) fn ours(urls: &[String]) -> io::Result<Self> {
        Self::start(&env::current_exe()?, worker::FLAG, "quorlock", urls)
    }

    /// Runs this program once more, as the floor.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub(crate) fn floor(urls: &[String]) -> io::Result<Self> {
        Self::start(&env::current_exe()?, floor::FLAG, "floor", urls)
    }

    /// Which client this is.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Has some pairs run on a name of its own, so that it is connected.
    ///
    /// # Errors
    ///
    /// As for [`pairs`](Self::pairs).
    pub(crate) fn warm_up(&mut self) -> io::Result<()> {
        let name = format!("bench:warm-up:{}", self.child.id());
        self.pairs(20, &name, PATIENCE).map(drop)
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
        Ok(Batch {
            samples,
            failed: field(&line, "failed")?,
            cpu: Duration::from_micros(field(&line, "cpu_us")?),
        })
    }

    /// Has `threads` threads or tasks run pairs for `window`, a key each.
    ///
    /// # Errors
    ///
    /// As for [`pairs`](Self::pairs), with a patience of ten seconds beyond the window.
    pub(crate) fn threads(
        &mut self,
        threads: usize,
        window: Duration,
        key: &str,
    ) -> io::Result<Window> {
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

    /// Tells it to lock, however long that takes, and does not wait for it.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub(crate) fn begin_lock(&mut self, key: &str) -> io::Result<()> {
        self.tell(format_args!("lock {TTL_MS} {key}"))
    }

    /// Waits until it has locked.
    ///
    /// # Errors
    ///
    /// As for [`pairs`](Self::pairs).
    pub(crate) fn locked(&mut self) -> io::Result<Locked> {
        let line = self.hear(PATIENCE)?;
        Ok(Locked {
            called: field(&line, "called_ns")?,
            at: field(&line, "at_ns")?,
        })
    }

    /// Has it release what it has locked `after` a time; returns when it called release, by the shared clock.
    ///
    /// # Errors
    ///
    /// As for [`pairs`](Self::pairs).
    pub(crate) fn unlock(&mut self, after: Duration) -> io::Result<u64> {
        let line = self.ask(format_args!("unlock {}", after.as_micros()), PATIENCE)?;
        field(&line, "called_ns")
    }

    /// Tells it to run critical sections in `workers` threads or tasks, and does not wait for it.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub(crate) fn begin_sections(&mut self, workers: usize, job: &Job) -> io::Result<()> {
        let Job {
            begin,
            end,
            inside,
            name,
        } = job;
        let inside = inside.as_micros();
        self.tell(format_args!(
            "sections {workers} {begin} {end} {inside} {TTL_MS} {name}"
        ))
    }

    /// Waits for what became of them.
    ///
    /// # Errors
    ///
    /// As for [`pairs`](Self::pairs).
    pub(crate) fn sections(&mut self) -> io::Result<Report> {
        self.hear(PATIENCE)?.parse()
    }

    /// Has it lock `n` names `key:0` and so on, and keep them. Ours only.
    ///
    /// # Errors
    ///
    /// As for [`pairs`](Self::pairs).
    pub(crate) fn hold(&mut self, n: usize, key: &str) -> io::Result<()> {
        self.ask(format_args!("hold {n} {key}"), PATIENCE).map(drop)
    }

    /// Has it release what it holds; says how many it still held. Ours only.
    ///
    /// # Errors
    ///
    /// As for [`pairs`](Self::pairs).
    pub(crate) fn release(&mut self) -> io::Result<usize> {
        field(&self.ask("release", PATIENCE)?, "valid")
    }

    /// The commands that it has handed to the nodes, all together. Ours only.
    ///
    /// # Errors
    ///
    /// As for [`pairs`](Self::pairs).
    pub(crate) fn commands(&mut self) -> io::Result<u64> {
        field(&self.ask("commands", PATIENCE)?, "commands")
    }

    fn ask(&mut self, request: impl Display, patience: Duration) -> io::Result<String> {
        self.tell(request)?;
        self.hear(patience)
    }

    fn tell(&mut self, request: impl Display) -> io::Result<()> {
        writeln!(self.input, "{request}")?;
        self.input.flush()
    }

    fn hear(&mut self, patience: Duration) -> io::Result<String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => match line.strip_prefix("error ") {
                None => Ok(line),
                Some(reason) => Err(io::Error::other(format!("{}: {reason}", self.name))),
            },
            Err(RecvTimeoutError::Timeout) => {
                Err(io::Error::other(format!("no answer in {patience:?}")))
            }
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
