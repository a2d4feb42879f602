//! What these tests have in common.

use std::process::{Command, Output};

use devnodes::Servers;

pub(crate) type TestResult = Result<(), Box<dyn std::error::Error>>;

/// The command, for these servers. It sees no options of whoever runs the tests.
pub(crate) fn quorlock(servers: &Servers) -> Command {
    let mut command = bare();
    command.env("QUORLOCK_NODES", servers.urls().join(",")).env("QUORLOCK_NO_QUARANTINE", "true");
    command
}

/// The command, without servers.
pub(crate) fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorlock"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("QUORLOCK_")) {
        command.env_remove(name);
    }
    command
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
