//! Questions at a terminal.

use std::io::{self, IsTerminal, Write};

use crate::exit::{Exit, Failed};

/// Fails without a terminal and without --yes. Called before anything else, so that a refused
/// command does nothing.
pub(crate) fn check(yes: bool) -> Result<(), Failed> {
    if yes || (io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(());
    }
    Err(Failed::new(
        Exit::USAGE,
        "no terminal to ask on: pass --yes to confirm",
    ))
}

/// Shows the text and asks, unless `yes`. Only the answers `y` and `yes` confirm.
pub(crate) fn confirm(about: &str, question: &str, yes: bool) -> Result<(), Failed> {
    if yes {
        return Ok(());
    }
    let failed = |err: io::Error| Failed::new(Exit::INTERNAL, format!("terminal: {err}"));
    let mut err = io::stderr().lock();
    write!(err, "{about}\n{question} [y/N] ")
        .and_then(|()| err.flush())
        .map_err(failed)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        return Ok(());
    }
    Err(Failed::new(
        Exit::REFUSED,
        "not confirmed: nothing was changed",
    ))
}
