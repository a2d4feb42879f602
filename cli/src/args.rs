//! The commands and their options: each can be given as a variable too.

use clap::{Parser, Subcommand};

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
    about = "Distributed locks on a majority of independent Redis servers",
    max_term_width = 100
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command while a lock is held
    Run(Run),
    /// Says, under `quorlock run`, whether the lock is still held: for the steps of a script
    Check(Check),
    /// Holds a lock until stdin ends or a signal comes, and says what happens to it
    Hold(Hold),
    /// Says who holds a lock, and who waits
    Status(Status),
    /// Lists the locks and permits that somebody holds
    Ls(Ls),
    /// Says whether these servers are fit for locks, and what to do where they are not
    Doctor(Doctor),
    /// Measures what locks cost on these servers
    Bench(Bench),
    /// Takes a lock from whoever holds it
    Release(Release),
    /// Says that servers are new, so that they vote at once
    Vouch(Vouch),
    /// Writes what a shell needs to complete options: `source <(quorlock completions bash)`
    Completions(Completions),
    /// Says this as a manual page: `quorlock man | man -l -`
    Man(Man),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_options_fit_together() {
        Args::command().debug_assert();
    }

    /// All but those that say what is to be destroyed: a variable that was forgotten must not answer for anybody. Servers have
    /// one for all of them, and a line for the shell is in place of a command.
    #[test]
    fn every_option_has_a_variable() {
        let without = ["node", "command", "force", "forget", "yes", "leaked", "slot", "help", "version"];
        let mut all = Args::command();
        all.build();
        for command in all.get_subcommands().chain([&all]).filter(|it| it.get_name() != "help") {
            for (arg, long) in command.get_arguments().filter_map(|it| Some((it, it.get_long()?))) {
                let is_of_release = command.get_name() == "release" && long == "permits";
                let expected = !(without.contains(&long) || is_of_release);
                assert_eq!(arg.get_env().is_some(), expected, "{} --{long}", command.get_name());
            }
        }
    }
}
