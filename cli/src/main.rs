//! The command `quorlock`: a `flock(1)` for a majority of Redis servers.
//!
//! Uses only the public API of the crate `quorlock`. Other libraries:
//!
//! | library | for | why this one |
//! | --- | --- | --- |
//! | `anstream`, `terminal_size` | colour, the terminal's width | `clap` needs both |
//! | `clap` | options, help, variables | the usual one |
//! | `clap_complete`, `clap_mangen` | completions, manual pages | generated from the options |
//! | `comfy-table` | tables as wide as the terminal | two small dependencies |
//! | `ctor` | ignored signals of the starter | Rust changes SIGPIPE before `main`; no unsafe code |
//! | `hdrhistogram` | the times of `bench` | the usual one, of known precision; two dependencies |
//! | `nix` | blocks signals; leaves SIGPIPE to programs | `rustix` and Rust's library do not |
//! | `serde_json` | `--json` | the usual one |
//! | `signal-hook` | signals and their senders | no unsafe code here |

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
#[cfg(unix)]
mod lease;
mod ls;
#[cfg(unix)]
mod nested;
mod nodes;
mod options;
mod pages;
mod release;
mod report;
#[cfg(unix)]
mod run;
mod screen;
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

use crate::args::{Args, Command};
use crate::exit::Exit;

fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(helped) = run::help() {
        return helped;
    }
    let args = match Args::parse_all() {
        Ok(args) => args,
        Err(err) => {
            // Without a reader there is still the status.
            let _ = err.print();
            if !err.use_stderr() {
                return ExitCode::SUCCESS;
            }
            if args::lacks_dashes() {
                show::warn("put -- before the command: quorlock run NAME -- CMD");
            }
            return Exit::USAGE.code();
        }
    };
    let nodes = &args.nodes;
    // Whether errors are written as JSON, and the result.
    let (json, done) = match &args.command {
        #[cfg(unix)]
        Command::Check(it) => (false, run::check(it)),
        #[cfg(unix)]
        Command::Run(it) => (false, run::run(nodes, it)),
        #[cfg(unix)]
        Command::Once(it) => (false, run::once(nodes, it)),
        #[cfg(unix)]
        Command::Hold(it) => (it.json, hold::run(nodes, it)),
        #[cfg(not(unix))]
        Command::Check(_) | Command::Run(_) | Command::Once(_) | Command::Hold(_) => {
            let reason = "not available on this system: it has no process groups";
            (false, Err(exit::Failed::new(Exit::USAGE, reason)))
        }
        Command::Bench(it) => (false, bench::run(nodes, it)),
        Command::Completions(it) => (false, pages::completions(args::commands(), it)),
        Command::Doctor(it) => (it.json, doctor::run(nodes, it)),
        Command::Ls(it) => (it.json, ls::run(nodes, it)),
        Command::Man(it) => (false, pages::man(args::commands(), it)),
        Command::Release(it) => (false, release::run(nodes, it)),
        Command::Status(it) => (it.json, status::run(nodes, it)),
        Command::Vouch(it) => (false, vouch::run(nodes, it)),
    };
    done.unwrap_or_else(|failed| {
        #[cfg(unix)]
        if failed.exit == Exit::PIPE && !signals::is_ignored(signal_hook::consts::SIGPIPE) {
            // Locks are released by now. Fails for unknown signals only.
            let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
        }
        failed.tell(json);
        failed.exit.code()
    })
}
