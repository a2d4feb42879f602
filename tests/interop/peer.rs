//! Another client, in a process of its own.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use devnodes::PATIENCE;

use crate::install;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Client {
    RedlockPy,
    Pottery,
    NodeRedlock,
}

impl Client {
    /// What it puts before the name of a lock.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Client::Pottery => "redlock:",
            Client::RedlockPy | Client::NodeRedlock => "",
        }
    }

    /// Installs it if need be.
    fn command(self) -> Result<Command, String> {
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop");
        let python = |package| {
            let packages = install::python().map_err(|err| {
                format!("the Python half could not run (it needs python3 with pip): {err}")
            })?;
            let mut command = Command::new("python3");
            command
                .env("PYTHONPATH", packages)
                .arg(format!("{here}/client.py"))
                .arg(package);
            Ok(command)
        };
        match self {
            Client::RedlockPy => python("redlock-py"),
            Client::Pottery => python("pottery"),
            Client::NodeRedlock => {
                let folder = install::node().map_err(|err| {
                    format!("the Node half could not run (it needs node with npm): {err}")
                })?;
                let mut command = Command::new("node");
                command.arg(format!("{here}/client.mjs")).arg(folder);
                Ok(command)
            }
        }
    }
}

/// A running client. Ends with this value, and with this process however that ends: its stdin closes.
pub(crate) struct Peer {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Peer {
    pub(crate) fn start(client: Client, urls: &[String]) -> Result<Peer, Box<dyn Error>> {
        let mut command = client.command()?;
        let mut child = command
            .args(urls)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().ok_or("no stdin")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let (send, lines) = bounded(16);
        // Ends when the child does.
        thread::Builder::new()
            .name("interop-peer".into())
            .spawn(move || {
                for line in stdout.lines().map_while(Result::ok) {
                    if send.send(line).is_err() {
                        return;
                    }
                }
            })?;
        let peer = Peer {
            child,
            stdin,
            lines,
        };
        let said = peer.answer()?;
        let versions = said
            .strip_prefix("ready ")
            .ok_or_else(|| format!("said {said:?} instead of \"ready\""))?;
        install::say_once(versions);
        Ok(peer)
    }

    /// One attempt: whether it got the lock.
    pub(crate) fn acquire(&mut self, name: &str, ttl: Duration) -> Result<bool, Box<dyn Error>> {
        match self
            .ask(&format!("acquire {name} {}", ttl.as_millis()))?
            .as_str()
        {
            "held" => Ok(true),
            "refused" => Ok(false),
            other => Err(format!("acquire: {other}").into()),
        }
    }

    /// Releases what was acquired last: "released", or what went wrong.
    pub(crate) fn release(&mut self) -> Result<String, Box<dyn Error>> {
        self.ask("release")
    }

    fn ask(&mut self, line: &str) -> Result<String, Box<dyn Error>> {
        writeln!(self.stdin, "{line}")?;
        self.answer()
    }

    fn answer(&self) -> Result<String, Box<dyn Error>> {
        let no_answer =
            |err| format!("the client ended or does not answer, see its messages above: {err}");
        Ok(self.lines.recv_timeout(PATIENCE).map_err(no_answer)?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
