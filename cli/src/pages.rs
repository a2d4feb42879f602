//! `quorlock completions` and `quorlock man`: generated from the options.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man as Page;

use crate::exit::{Exit, Failed};
use crate::show;

#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// Page of this command [default: quorlock]
    command: Option<String>,
    /// Write all pages to DIR: quorlock.1, quorlock-run.1, …
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    all: Option<PathBuf>,
}

pub(crate) fn completions(mut all: Command, completions: &Completions) -> Result<ExitCode, Failed> {
    let mut text = Vec::new();
    clap_complete::generate(completions.shell, &mut all, "quorlock", &mut text);
    written(&text)
}

pub(crate) fn man(mut all: Command, man: &Man) -> Result<ExitCode, Failed> {
    if let Some(folder) = &man.all {
        let failed = |err| Failed::new(Exit::INTERNAL, format!("{}: {err}", folder.display()));
        return clap_mangen::generate_to(all, folder)
            .map_err(failed)
            .map(|()| ExitCode::SUCCESS);
    }
    all.build();
    let page = match &man.command {
        None => all,
        Some(name) => {
            let unknown = || Failed::new(Exit::USAGE, format!("{name}: no such command"));
            all.find_subcommand(name).ok_or_else(unknown)?.clone()
        }
    };
    let mut text = Vec::new();
    Page::new(page).render(&mut text)?;
    written(&text)
}

fn written(text: &[u8]) -> Result<ExitCode, Failed> {
    show::say(String::from_utf8_lossy(text).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
