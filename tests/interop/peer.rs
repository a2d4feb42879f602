//! Another client, in a process of its own.

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use devnodes::ChildProcess;

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
            let packages = install::python()?;
            let mut command = Command::new("python3");
            command.env("PYTHONPATH", packages);
            command.arg(format!("{here}/client.py")).arg(package);
            Ok(command)
        };
        match self {
            Client::RedlockPy => python("redlock-py"),
            Client::Pottery => python("pottery"),
            Client::NodeRedlock => {
                let mut command = Command::new("node");
                command.arg(format!("{here}/client.mjs"));
                command.arg(install::node()?);
                Ok(command)
            }
        }
    }
}

/// A running client. Ends with this value, and with this process however that ends: its stdin closes.
pub(crate) struct Peer(ChildProcess);

impl Peer {
    pub(crate) fn start(client: Client, urls: &[String]) -> Result<Peer, Box<dyn Error>> {
        let mut command = client.command()?;
        command.args(urls);
        let process = ChildProcess::run(command, "");
        assert_eq!(process.hear(), "ready");
        Ok(Peer(process))
    }

    /// One attempt: whether it got the lock.
    pub(crate) fn acquire(&mut self, name: &str, ttl: Duration) -> bool {
        let said = self.ask(&format!("acquire {name} {}", ttl.as_millis()));
        assert!(["held", "refused"].contains(&&*said), "{said}");
        said == "held"
    }

    /// Releases what was acquired last: "released", or what went wrong.
    pub(crate) fn release(&mut self) -> String {
        self.ask("release")
    }

    fn ask(&mut self, line: &str) -> String {
        self.0.tell(line);
        self.0.hear()
    }
}
