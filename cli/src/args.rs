//! The commands.

use std::env;
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::bench::Bench;
use crate::doctor::Doctor;
use crate::holding::{Check, Hold, Planned, Run};
use crate::ls::Ls;
use crate::options::NodeArgs;
use crate::pages::{Completions, Man};
use crate::release::Release;
use crate::status::Status;
use crate::vouch::Vouch;

#[derive(Debug, Parser)]
#[command(
    name = "quorlock",
    version,
    propagate_version = true,
    about = "Distributed locks on a majority of independent Redis servers",
    max_term_width = 100
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Of the command line and the environment.
    pub(crate) fn parse_all() -> Result<Args, clap::Error> {
        let matches = commands().try_get_matches()?;
        let mut args = Args::from_arg_matches(&matches)?;
        if let (Command::Doctor(doctor), Some((_, given))) =
            (&mut args.command, matches.subcommand())
            && given.value_source("max_ttl") == Some(ValueSource::CommandLine)
        {
            doctor.max_ttl = args.nodes.max_ttl;
        }
        Ok(args)
    }
}

/// All commands. Options of all commands have a variable: QUORLOCK_ and the name of the option. An
/// empty variable is none.
pub(crate) fn commands() -> clap::Command {
    Args::command().mut_args(|arg| {
        let arg = arg.global(true);
        let variable = format!("QUORLOCK_{}", arg.get_id().as_str().to_uppercase());
        // Several ways lead to servers: see `nodes`.
        if arg.get_id() == "nodes" || env::var_os(&variable).is_some_and(|it| it.is_empty()) {
            arg
        } else {
            arg.env(variable)
        }
    })
}

/// Whether this is a line of `run` or `once` with neither -- nor -c before the command.
pub(crate) fn lacks_dashes() -> bool {
    let mut words = env::args_os().skip(1);
    let is = |word: OsString, all: &[&str]| all.iter().any(|it| word == *it);
    words
        .next()
        .is_some_and(|it| is(it, &["run", "lock", "once"]))
        && !words.any(|it| is(it, &["--", "-c", "--command"]))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command under a lock
    #[command(visible_alias = "lock")]
    Run(Run),
    /// Run a command once per period, on one of many machines
    Once(Planned),
    /// Check that `quorlock run` still holds the lock, between the steps of a script
    Check(Check),
    /// Hold a lock until stdin ends or a signal comes, and report its events
    Hold(Hold),
    /// Show the holder of a lock and the waiting clients
    Status(Status),
    /// List held locks and permits
    Ls(Ls),
    /// Check that these servers are fit for locks
    Doctor(Doctor),
    /// Measure the cost of locks on these servers
    Bench(Bench),
    /// Take a lock from its holder
    #[command(alias = "unlock")]
    Release(Release),
    /// Confirm that servers are new, so that they vote at once
    Vouch(Vouch),
    /// Write a completion script: `source <(quorlock completions bash)`
    Completions(Completions),
    /// Write manual pages into a folder
    Man(Man),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_fit_together() {
        commands().debug_assert();
    }
}
