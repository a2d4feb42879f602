//! What locks cost, next to the raw floor and to other clients, on five real servers.
//!
//! ```text
//! cargo bench --bench locks                       all of it, some five minutes
//! cargo bench --bench locks -- uncontended        one scenario: uncontended, threads, faults or held
//! cargo bench --bench locks -- --quick            all of it, about a minute; take the numbers lightly
//! ```
//!
//! Read the ratios. All that is compared is run in the same minute, in turns, on the same servers; see
//! `support/scenarios` for each question, `support/floor.rs` for what the floor is.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that measures time and prints it"
)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "statistics; a bench that stops loudly is fine"
)]

mod support;

use std::env;
use std::process::ExitCode;

use support::peers::Peers;
use support::scenarios::{faults, held, threads, uncontended};
use support::{Result, Setting};

type Scenario = fn(&Setting) -> Result;

const SCENARIOS: [(&str, Scenario); 4] =
    [("uncontended", uncontended::run), ("threads", threads::run), ("faults", faults::run), ("held", held::run)];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|it| it == flag);
    if !has("--bench") {
        // `cargo test --all-targets` runs benches too, and means to test them.
        println!("nothing to test here: `cargo bench` measures");
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = args.iter().filter(|it| !it.starts_with('-')).collect();
    if let Some(unknown) = wanted.iter().find(|it| !SCENARIOS.iter().any(|(name, _)| name == *it)) {
        eprintln!("no scenario {unknown:?}; there are {:?}", SCENARIOS.map(|(name, _)| name));
        return ExitCode::from(2);
    }

    // Those of `held` cannot be compared, so it does not wait for a build.
    let compares = wanted.is_empty() || wanted.iter().any(|it| *it != "held");
    let peers = if compares { Peers::build() } else { None };
    let setting = Setting { quick: has("--quick"), peers };
    for (name, run) in SCENARIOS {
        if !wanted.is_empty() && !wanted.iter().any(|it| *it == name) {
            continue;
        }
        if let Err(err) = run(&setting) {
            eprintln!("{name}: {err}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
