//! `quorlock completions` and `quorlock man`: generated from the options.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::exit::{Exit, Failed};
use crate::show;

#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// Folder for the pages: quorlock.1, quorlock-run.1, …
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn completions(mut all: Command, completions: &Completions) -> Result<ExitCode, Failed> {
    let mut text = Vec::new();
    clap_complete::generate(completions.shell, &mut all, "quorlock", &mut text);
    show::say(String::from_utf8_lossy(&text).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(all: Command, man: &Man) -> Result<ExitCode, Failed> {
    let failed = |err| Failed::new(Exit::INTERNAL, format!("{}: {err}", man.folder.display()));
    clap_mangen::generate_to(all, &man.folder).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
