//! Options: each can be given as a variable too.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{Parser, Subcommand};

use crate::bench::Bench;
use crate::doctor::Doctor;
use crate::ls::Ls;
use crate::pages::{Completions, Man};
use crate::release::Release;
use crate::status::Status;
use crate::taking::Taking;
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

/// Which servers, and how they are talked to.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct NodeArgs {
    /// A Redis server, as redis://host:port/database: once for each
    ///
    /// A password belongs into a file or a variable: everybody on this machine can see the options of a command.
    #[arg(long = "node", value_name = "URL", global = true)]
    pub(crate) nodes: Vec<String>,
    /// The servers, with spaces or commas between
    #[arg(
        long = "nodes",
        value_name = "URLS",
        env = "QUORLOCK_NODES",
        hide_env_values = true,
        global = true,
        hide = true
    )]
    pub(crate) list: Option<String>,
    /// A file with a server in each line
    #[arg(long, value_name = "FILE", env = "QUORLOCK_NODES_FILE", global = true)]
    pub(crate) nodes_file: Option<PathBuf>,
    /// A file of options: nodes, user, password-file, prefix, ttl, …
    #[arg(long, value_name = "FILE", env = "QUORLOCK_CONFIG", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// The user for all servers
    #[arg(long, value_name = "NAME", env = "QUORLOCK_USER", global = true)]
    pub(crate) user: Option<String>,
    /// A file with the password for all servers, in its first line
    #[arg(long, value_name = "FILE", env = "QUORLOCK_PASSWORD_FILE", global = true)]
    pub(crate) password_file: Option<PathBuf>,
    /// The password for all servers: as a variable
    #[arg(long, env = "QUORLOCK_PASSWORD", hide_env_values = true, global = true, hide = true)]
    pub(crate) password: Option<String>,
    /// What stands before each name, in the keys on the servers
    #[arg(long, value_name = "TEXT", env = "QUORLOCK_PREFIX", global = true)]
    pub(crate) prefix: Option<String>,
    /// How long a lock lives that nobody extends: 30, 1.5s, 200ms, 2m [default: 30s]
    #[arg(long, value_name = "TIME", env = "QUORLOCK_TTL", value_parser = duration, global = true)]
    pub(crate) ttl: Option<Duration>,
    /// The longest ttl that any program uses with these servers [default: the ttl]
    #[arg(long, value_name = "TIME", env = "QUORLOCK_MAX_TTL", value_parser = duration, global = true)]
    pub(crate) max_ttl: Option<Duration>,
    /// How long a server may take for an answer [default: 500ms]
    #[arg(long, value_name = "TIME", env = "QUORLOCK_RESPONSE_TIMEOUT", value_parser = duration, global = true)]
    pub(crate) response_timeout: Option<Duration>,
    /// How long it may take to connect to a server [default: 2s]
    #[arg(long, value_name = "TIME", env = "QUORLOCK_CONNECT_TIMEOUT", value_parser = duration, global = true)]
    pub(crate) connect_timeout: Option<Duration>,
    /// Servers that were started lately, or were emptied, vote at once: for servers that are there for a test
    #[arg(long, env = "QUORLOCK_NO_QUARANTINE", global = true, value_parser = switch())]
    pub(crate) no_quarantine: bool,
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

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The lock is waited for, extended while the command runs, and released when the command and all its processes have ended. \
Signals (INT, TERM, HUP, QUIT, USR1, USR2) go to the command and its processes, or end the wait.

If the lock can no longer be extended, the processes get TERM, and KILL so early that they are gone before the lock can be \
anybody else's, also if quorlock itself is killed, stopped or starved: a second process, the guardian, sees to that.

Not covered: a process that leaves the group (setsid, the jobs of an interactive shell); one that becomes another user's \
(write sudo quorlock, and not quorlock run NAME -- sudo); a KILL for quorlock and its guardian alike; and a machine that \
stands still as a whole: when it goes on, the command may run for a moment before it is killed. Only storage that checks \
the token closes that gap.

The command has QUORLOCK_NAME, QUORLOCK_FENCING_TOKEN (with -s that of the last writer) and QUORLOCK_LEASE, the file that \
`quorlock check` reads.

Ends with the status of the command, or 128 and the number of the signal that ended it. And with
   75  the lock was not to be had in time (-E)      126  the command cannot be executed
   69  no majority of the servers can be asked      127  there is no such command
   79  the lock was lost, the command was killed    64   options that make no sense
   77  a wrong password, or an access list          78   a configuration that cannot be used
  128+ a signal of this number ended the wait       70   a fault of this machine, or of quorlock

Examples:
  quorlock run nightly-report -- report --all         waits for the lock
  quorlock run -n -E 0 -q nightly-report -- report    for cron: one machine does it, the others are content
  quorlock run -w 30 deploy -c 'build && push'        waits for half a minute; a line for the shell
  quorlock run --permits 3 mail -- send-mail          as one of three")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// So long after TERM comes KILL, if the lock can no longer be extended; a second less than half of the ttl at most
    /// [default: 5s]
    #[arg(long, value_name = "TIME", env = "QUORLOCK_KILL_AFTER", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,
    /// A line for the shell, run beside the command when the lock is lost: it is not killed, and is waited for
    #[arg(long, value_name = "STRING", env = "QUORLOCK_ON_LOST")]
    pub(crate) on_lost: Option<String>,
    /// A line for the shell, in place of a command
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "command")]
    pub(crate) line: Option<String>,
    /// The command, and its options
    #[arg(last = true, value_name = "CMD", required_unless_present = "line")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Asks no server: it reads the file that QUORLOCK_LEASE names, which says how long the processes may run if the lock is not \
extended. Ends with 0 if it is held for that long, and 79 if not.

Example, between the steps of a script:
  quorlock check --at-least 5s || exit")]
pub(crate) struct Check {
    /// For so long from now, even if nothing extends it [default: for this moment]
    #[arg(long, value_name = "TIME", env = "QUORLOCK_AT_LEAST", value_parser = duration)]
    pub(crate) at_least: Option<Duration>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Says a line for each thing that happens: `held TOKEN` once the lock is held, `lost REASON` or `released` when it is not \
any more. The token is larger than that of every earlier holder; with -s it is that of the last writer. \
When stdin ends during the wait, or a signal comes, the wait ends.

Ends with 0 if the lock was released, 79 if it was lost, 75 (-E) if it was not to be had in time, 69 if no majority of the \
servers can be asked, 128 and the number of the signal that ended the wait.

Examples:
  quorlock hold nightly-report                holds it until Ctrl-D or Ctrl-C
  quorlock hold --json -w 30 nightly-report   for programs: see the page on the command")]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// Only a signal ends it: for programs that are started without a stdin
    #[arg(long, env = "QUORLOCK_UNTIL_SIGNAL", value_parser = switch())]
    pub(crate) until_signal: bool,
    /// Says it in JSON, an object in each line
    #[arg(long, env = "QUORLOCK_JSON", value_parser = switch())]
    pub(crate) json: bool,
}

impl Args {
    /// Whether programs read what is said.
    pub(crate) fn json(&self) -> bool {
        match &self.command {
            Command::Check(_) | Command::Run(_) => false,
            Command::Bench(it) => it.json,
            Command::Hold(it) => it.json,
            Command::Completions(_) | Command::Man(_) => false,
            Command::Doctor(it) => it.json,
            Command::Ls(it) => it.json,
            Command::Release(it) => it.json,
            Command::Status(it) => it.json,
            Command::Vouch(it) => it.json,
        }
    }
}

/// Of an option without a value: its variable says yes, unless it is empty or says `0`, `false`, `no` or `off`.
pub(crate) fn switch() -> FalseyValueParser {
    FalseyValueParser::new()
}

/// A time: a number, and `ms`, `s`, `m` or `h`; seconds without one.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time: give a number of seconds, or one with ms, s, m or h behind it");
    let number_ends = text.find(|it: char| it.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    if number.is_empty() || !number.bytes().all(|it| it.is_ascii_digit() || it == b'.') {
        return Err(wrong());
    }
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
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
        let without = ["node", "command", "force", "yes", "leaked", "slot", "help", "version"];
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

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        for (text, millis) in
            [("30", 30_000), ("1.5s", 1_500), ("200ms", 200), ("2m", 120_000), ("1h", 3_600_000), ("0", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1", "1d", "1 s", "inf", "nan", "1e3", "1.2.3", "99999999999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
