//! What is made of the options: completions and manual pages.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man as Page;

use crate::exit::{Exit, Failed};
use crate::show;

#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// For this shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// Of one command, rather than of all of them
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Option<String>,
}

/// `all`: the command with all its options.
pub(crate) fn completions(mut all: Command, completions: &Completions) -> Result<ExitCode, Failed> {
    let mut text = Vec::new();
    clap_complete::generate(completions.shell, &mut all, "quorlock", &mut text);
    show::say(String::from_utf8_lossy(&text).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(mut all: Command, man: &Man) -> Result<ExitCode, Failed> {
    all.build();
    let page = match &man.command {
        None => all,
        Some(name) => {
            let no_such = || Failed::new(Exit::USAGE, format!("{name}: there is no such command"));
            all.find_subcommand(name).ok_or_else(no_such)?.clone()
        }
    };
    let mut text = Vec::new();
    let version = concat!("quorlock ", env!("CARGO_PKG_VERSION"));
    Page::new(page).source(version).render(&mut text)?;
    show::say(String::from_utf8_lossy(&text).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
