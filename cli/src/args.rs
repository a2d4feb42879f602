//! The commands.

use std::env;
use std::ffi::OsString;

use clap::builder::{FalseyValueParser, Resettable};
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Id, Parser, Subcommand};

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
        // If this fails, no variable is at fault, and the help names all variables.
        let line = commands(|_| false).try_get_matches();
        let matches = match line.as_ref().map(ArgMatches::subcommand) {
            Ok(Some((_, line))) => commands(|arg| is_read(arg, line))
                .try_get_matches()
                .map_err(blame_variable)?,
            _ => commands(|_| true).try_get_matches()?,
        };
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

/// An option overrides the variables of its group.
const RIVALS: &[&[&str]] = &[
    &["nodes", "list", "nodes_file"],
    &["password", "password_file"],
    &["quiet", "verbose"],
    &["shared", "exclusive", "permits"],
    &["wait", "no_wait", "planned"],
    &["every", "fire_time", "keep"],
];

/// All commands. The variable of an option is QUORLOCK_ and its name, unless it has another one; with `hide_env` it has none.
pub(crate) fn commands(is_read: impl Fn(&Arg) -> bool) -> clap::Command {
    let edit = |mut arg: Arg| {
        if let Some(name) = arg.get_long()
            && arg.get_env().is_none()
            && !arg.is_hide_env_set()
        {
            let name = name.replace('-', "_").to_uppercase();
            arg = arg.env(format!("QUORLOCK_{name}"));
        }
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            // Off if empty, `0`, `false`, `no` or `off`.
            arg = arg.value_parser(FalseyValueParser::new());
        }
        if is_read(&arg) {
            arg
        } else {
            arg.env(Resettable::Reset)
        }
    };
    Args::command()
        .mut_args(|arg| edit(arg).global(true))
        .mut_subcommands(|command| command.mut_args(edit))
}

/// An empty variable is none. An option of its group on the command line is read instead.
fn is_read(arg: &Arg, line: &ArgMatches) -> bool {
    let id = arg.get_id().as_str();
    let is_rival = |it| {
        RIVALS
            .iter()
            .any(|group| group.contains(&id) && group.contains(&it))
    };
    let mut given = line
        .ids()
        .map(Id::as_str)
        .filter(|it| line.value_source(it) == Some(ValueSource::CommandLine));
    let value = arg.get_env().and_then(env::var_os);
    value.is_some_and(|value| !value.is_empty()) && !given.any(is_rival)
}

/// The command line is valid: a wrong value is that of a variable.
fn blame_variable(mut err: clap::Error) -> clap::Error {
    let mut all = commands(|_| true);
    all.build();
    let mut args = all.get_subcommands().flat_map(clap::Command::get_arguments);
    let option = err.get(ContextKind::InvalidArg).map(ToString::to_string);
    let arg = args.find(|arg| Some(arg.to_string()) == option);
    if let Some(variable) = arg.and_then(Arg::get_env) {
        let variable = variable.to_string_lossy().into_owned();
        err.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    err
}

/// Whether the command line is that of `run` or `once` with -- before one of its words, and invalid only without.
pub(crate) fn lacks_dashes() -> bool {
    let line: Vec<OsString> = env::args_os().collect();
    let is_of_run = |at: usize| {
        let mut line = line.clone();
        line.insert(at, "--".into());
        commands(|_| false)
            .try_get_matches_from(line)
            .is_ok_and(|it| matches!(it.subcommand_name(), Some("run" | "once")))
    };
    let mut words = line.iter().enumerate().skip(2);
    line.iter().all(|word| word != "--")
        && words.any(|(at, word)| !word.as_encoded_bytes().starts_with(b"-") && is_of_run(at))
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
    /// Write manual pages: `quorlock man run | man -l -`
    Man(Man),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_fit_together() {
        commands(|_| true).debug_assert();
    }

    /// Not the confirmations: a forgotten variable must not confirm. QUORLOCK_NODES is the variable for --node.
    #[test]
    fn every_option_has_a_variable() {
        let without = [
            "node",
            "command",
            "exclusive",
            "again",
            "all",
            "force",
            "yes",
            "slot",
            "help",
            "version",
        ];
        let mut all = commands(|_| true);
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
