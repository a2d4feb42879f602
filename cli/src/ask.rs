//! Asking whoever sits at the terminal.

use std::io::{self, IsTerminal, Write};

use crate::exit::{Exit, Failed};

/// Whether somebody can be asked, or has said yes already. Before anything else is done: nobody waits for what is refused then.
pub(crate) fn check(yes: bool) -> Result<(), Failed> {
    if yes || (io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(());
    }
    Err(Failed::new(Exit::USAGE, "nobody can be asked here, as there is no terminal: --yes says that it is meant"))
}

/// Shows what it is about and asks, unless the answer is given. Only `y` and `yes` are one.
pub(crate) fn confirm(about: &str, question: &str, yes: bool) -> Result<(), Failed> {
    if yes {
        return Ok(());
    }
    let failed = |err: io::Error| Failed::new(Exit::INTERNAL, format!("terminal: {err}"));
    let mut err = io::stderr().lock();
    write!(err, "{about}\n{question} [y/N] ").and_then(|()| err.flush()).map_err(failed)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        return Ok(());
    }
    Err(Failed::new(Exit::REFUSED, "nothing was done"))
}
