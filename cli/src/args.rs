//! The commands.

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::bench::Bench;
use crate::doctor::Doctor;
use crate::holding::{Check, Hold, Run};
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
        let matches = Args::command().try_get_matches()?;
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

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command under a lock
    #[command(visible_alias = "lock")]
    Run(Run),
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
    Release(Release),
    /// Confirm that servers are new, so that they vote at once
    Vouch(Vouch),
    /// Write a completion script: `source <(quorlock completions bash)`
    Completions(Completions),
    /// Write manual pages: `quorlock man run | man -l -`
    Man(Man),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_fit_together() {
        Args::command().debug_assert();
    }

    /// Not the confirmations: a forgotten variable must not confirm. QUORLOCK_NODES is the variable for --node.
    #[test]
    fn every_option_has_a_variable() {
        let without = [
            "node",
            "command",
            "exclusive",
            "all",
            "force",
            "yes",
            "slot",
            "help",
            "version",
        ];
        let mut all = Args::command();
        all.build();
        for command in all
            .get_subcommands()
            .chain([&all])
            .filter(|it| it.get_name() != "help")
        {
            for (arg, long) in command
                .get_arguments()
                .filter_map(|it| Some((it, it.get_long()?)))
            {
                let is_of_release = command.get_name() == "release" && long == "permits";
                let expected = !(without.contains(&long) || is_of_release);
                assert_eq!(
                    arg.get_env().is_some(),
                    expected,
                    "{} --{long}",
                    command.get_name()
                );
            }
        }
    }
}
