//! Stand-ins as processes, in place of servers without options.
//!
//! A stand-in is a process of the test's own program, which runs one of its tests: [`run_if_asked`]. So what tests do to processes
//! they do to stand-ins: kill them, stop them, set their clocks.

use std::process::Command;
use std::{env, io};

use crate::server::Builder;
use crate::{Backend, backend};

/// The test of the program that is a stand-in.
const TEST: &str = "child_that_is_a_stand_in";
/// Has its port.
const PORT: &str = "QUORLOCK_CHILD_STAND_IN";

/// Whether a server with these options is a stand-in.
pub(crate) fn is_wanted(spec: &Builder) -> bool {
    backend() == Backend::StandIns && spec.has_no_options()
}

/// Makes the command start a stand-in: the program and its arguments come behind what is in the command.
pub(crate) fn add_to(command: &mut Command, port: u16) -> io::Result<()> {
    command
        .arg(env::current_exe()?)
        .args(["--exact", TEST, "--ignored", "--nocapture"]);
    command.env(PORT, port.to_string());
    Ok(())
}

/// What the test `child_that_is_a_stand_in` of a program does: it is a stand-in if the process was started as one.
pub fn run_if_asked() {
    if let Some(port) = env::var(PORT).ok().and_then(|port| port.parse().ok()) {
        quorlock_testing::serve(port).unwrap_or_else(|err| panic!("{err}"));
    }
}
