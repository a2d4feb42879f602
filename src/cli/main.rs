//! The command `quorlock`: a `flock(1)` for a majority of Redis servers.
//!
//! Built on the public API of the crate alone. What is not locking is done by libraries, none of which is part of a build
//! without the feature `cli`:
//!
//! | library | for | why this one |
//! | --- | --- | --- |
//! | `clap` | options, help, variables | the one that everybody reads |
//! | `clap_complete`, `clap_mangen` | completions, manual pages | from the options, so they are true |
//! | `comfy-table` | tables that fit the terminal | no dependency without its extras |
//! | `indicatif` | the bar of `bench` | the usual one; three small dependencies |
//! | `nix` | writing to a terminal that is the command's | `rustix`, which the crate has, blocks no signals |
//! | `serde`, `serde_json` | `--json` | the usual ones |
//! | `signal-hook` | signals | without code that the compiler does not check |
//! | `toml` | the config file | as above |

mod args;
mod ask;
mod bench;
mod doctor;
mod exit;
#[cfg(unix)]
mod hold;
mod ls;
mod nodes;
mod pages;
mod release;
#[cfg(unix)]
mod run;
mod seen;
mod show;
#[cfg(unix)]
mod signals;
mod status;
mod taking;
mod vouch;
#[cfg(unix)]
mod waiting;

use std::process::ExitCode;

use clap::Parser;

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
            return if err.use_stderr() { Exit::Usage.code() } else { ExitCode::SUCCESS };
        }
    };
    let done = match &args.command {
        #[cfg(unix)]
        Command::Check(check) => run::check(check),
        #[cfg(unix)]
        Command::Run(run) => run::run(&args, run),
        #[cfg(not(unix))]
        Command::Check(_) | Command::Run(_) => {
            Err(exit::Failed::new(Exit::Usage, "not on this system: there are no groups of processes to be killed"))
        }
        #[cfg(unix)]
        Command::Hold(hold) => hold::run(&args, hold),
        #[cfg(not(unix))]
        Command::Hold(_) => Err(exit::Failed::new(Exit::Usage, "not on this system: nobody can ask it to end")),
        Command::Bench(bench) => bench::run(&args, bench),
        Command::Completions(completions) => pages::completions(completions),
        Command::Ls(ls) => ls::run(&args, ls),
        Command::Man(man) => pages::man(man),
        Command::Doctor(doctor) => doctor::run(&args, doctor),
        Command::Release(release) => release::run(&args, release),
        Command::Vouch(vouch) => vouch::run(&args, vouch),
        Command::Status(status) => status::run(&args, status),
    };
    done.unwrap_or_else(|failed| {
        failed.tell(args.json());
        failed.exit.code()
    })
}
