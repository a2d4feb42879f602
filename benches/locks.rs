//! What locks cost, next to the raw floor and to other clients, on five real servers.
//!
//! ```text
//! cargo bench --bench locks                       all of it, some ten minutes
//! cargo bench --bench locks -- uncontended        one scenario
//! cargo bench --bench locks -- --quick            all of it, about two minutes; take the numbers lightly
//! ```
//!
//! | scenario | question |
//! | --- | --- |
//! | `uncontended` | what does an acquisition and its release cost when nobody else wants the lock? |
//! | `threads` | how many pairs per second do many threads get through? |
//! | `overload` | what becomes of many more threads than the servers can serve at once? |
//! | `faults` | what does one sick node cost? |
//! | `held` | what does it cost to hold very many locks? |
//! | `handover` | how soon does a waiter have a lock that is released? |
//! | `contended` | how well is a lock used that many want all the time, and how evenly? |
//! | `idle` | what does it cost to wait for a lock that is not released? |
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
use support::scenarios::{contended, faults, handover, held, idle, overload, threads, uncontended};
use support::{Result, Setting, worker};

type Scenario = fn(&Setting) -> Result;

const SCENARIOS: [(&str, Scenario); 8] = [
    ("uncontended", uncontended::run),
    ("threads", threads::run),
    ("overload", overload::run),
    ("faults", faults::run),
    ("held", held::run),
    ("handover", handover::run),
    ("contended", contended::run),
    ("idle", idle::run),
];

/// Those whose numbers cannot be compared with other clients', so that they need not wait for a build.
const ALONE: [&str; 2] = ["held", "idle"];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if let Some((worker::FLAG, urls)) = args.split_first().map(|(first, urls)| (first.as_str(), urls)) {
        return worker::run(urls);
    }
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

    let compares = wanted.is_empty() || wanted.iter().any(|it| !ALONE.contains(&it.as_str()));
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
