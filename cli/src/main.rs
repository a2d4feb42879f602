//! The command `quorlock`: a `flock(1)` for a majority of Redis servers.
//!
//! Built on the public API of the crate `quorlock` alone. Libraries do the rest:
//!
//! | library | for | why this one |
//! | --- | --- | --- |
//! | `clap` | options, help, variables | the one that everybody reads |
//! | `clap_complete`, `clap_mangen` | completions, manual pages | from the options, so they are true |
//! | `comfy-table` | tables that fit the terminal | no dependency without its extras |
//! | `indicatif` | the bar of `bench` | the usual one; three small dependencies |
//! | `nix` | writing to a terminal that is the command's | `rustix` blocks no signals |
//! | `serde`, `serde_json` | `--json` | the usual ones |
//! | `signal-hook` | signals | without code that the compiler does not check |
//! | `toml` | the config file | as above |

mod args;
mod ask;
mod bench;
#[cfg(unix)]
mod clock;
mod doctor;
mod exit;
#[cfg(unix)]
mod hold;
mod holding;
mod ls;
mod nodes;
mod options;
mod pages;
mod release;
#[cfg(unix)]
mod run;
mod seen;
mod show;
#[cfg(unix)]
mod signals;
mod status;
#[cfg(unix)]
mod stderr;
mod taking;
mod vouch;
#[cfg(unix)]
mod waiting;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Args, Command};
use crate::exit::Exit;

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(helped) = run::help() {
        return helped;
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(err) => {
            // It is printed as far as that is possible: nobody is there to be told that it is not.
            let _ = err.print();
            return if err.use_stderr() { Exit::USAGE.code() } else { ExitCode::SUCCESS };
        }
    };
    let nodes = &args.nodes;
    // Whether errors are JSON, and the result.
    let (json, done) = match &args.command {
        #[cfg(unix)]
        Command::Check(it) => (false, run::check(it)),
        #[cfg(unix)]
        Command::Run(it) => (false, run::run(nodes, it)),
        #[cfg(not(unix))]
        Command::Check(_) | Command::Run(_) => {
            let reason = "not on this system: there are no groups of processes to be killed";
            (false, Err(exit::Failed::new(Exit::USAGE, reason)))
        }
        #[cfg(unix)]
        Command::Hold(it) => (it.json, hold::run(nodes, it)),
        #[cfg(not(unix))]
        Command::Hold(it) => {
            (it.json, Err(exit::Failed::new(Exit::USAGE, "not on this system: nobody can ask it to end")))
        }
        Command::Bench(it) => (it.json, bench::run(nodes, it)),
        Command::Completions(it) => (false, pages::completions(Args::command(), it)),
        Command::Doctor(it) => (it.json, doctor::run(nodes, it)),
        Command::Ls(it) => (it.json, ls::run(nodes, it)),
        Command::Man(it) => (false, pages::man(Args::command(), it)),
        Command::Release(it) => (it.json, release::run(nodes, it)),
        Command::Status(it) => (it.json, status::run(nodes, it)),
        Command::Vouch(it) => (it.json, vouch::run(nodes, it)),
    };
    done.unwrap_or_else(|failed| {
        failed.tell(json);
        failed.exit.code()
    })
}
