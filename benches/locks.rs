//! What locks cost, next to the raw floor and to other clients, on five real servers.
//!
//! ```text
//! cargo bench --package quorlock-benches --bench locks                          all of it, some twenty minutes
//! cargo bench --package quorlock-benches --bench locks -- uncontended           one scenario
//! cargo bench --package quorlock-benches --bench locks -- uncontended threads   several
//! cargo bench --package quorlock-benches --bench locks -- --quick               all of it, a few minutes; take the numbers lightly
//! cargo bench --package quorlock-benches --bench locks -- uncontended threads --svg FILE
//!                                                    ratios of these two as bars, too
//! ```
//!
//! | scenario | question | beside | columns to read |
//! | --- | --- | --- | --- |
//! | `uncontended` | what does an acquisition and its release cost when nobody else wants the lock? | both floors, other clients | `x floor`, `x scripts`; client's and servers' CPU |
//! | `threads` | how many pairs per second do 8 and 64 threads get through, and at what cost? | both floors with as many pairs under way, `rslock` on both runtimes | `pairs/s`, `x scripts`; client's and servers' CPU |
//! | `overload` | what becomes of many more threads than the servers can serve at once? | `rslock` | `% of best` |
//! | `faults` | what does one sick node cost? | other clients | `x healthy` |
//! | `held` | what does it cost to hold 10,000 locks? | | share of a core |
//! | `handover` | how soon does a waiter have a lock that is released? | a raw notify, an uncontended pair, `rslock` | `x notify`, `x pair` |
//! | `contended` | how well is a lock used that many want all the time, and how evenly? | a perfect queue, `rslock` | `held %`, `longest ms` |
//! | `idle` | what does it cost to wait for a lock that is not released? | | commands, CPU |
//! | `rwlock` | what do readers and writers cost? | a mutex | `x mutex`; servers' CPU |
//! | `readers` | what do eight readers and a writer get of a lock, and 64 readers that overlap? | a mutex | `x mutex`, the longest |
//! | `several` | what do several names at once cost? | a lock of one name | `x mutex`; servers' CPU |
//! | `permits` | how well is a semaphore of ten used by 8 and by 30 workers? | what is possible, a mutex | `in use %`, `rounds`, `longest ms` |
//! | `observer` | what does it cost to be told what a manager does? | a manager that nobody listens to | `x nobody` |
//! | `once` | what does it cost a program to lock once, from its start to its end? | a bare connection, a program that does nothing | `above ms` |
//! | `startup` | what does it cost to run a command under a lock, `quorlock run NAME -- true`? | `flock`, `redis-cli`, `true` alone | `x flock`; CPU |
//! | `network` | what is left of all that where a round trip takes 0.5 ms, or 5 ms? | the same floors behind the same network | the same |
//!
//! Read the ratios. All that is compared is run in the same minute, in turns, on the same servers, three times over, and
//! what is shown is the median of the three. "Client us" is the processor time of the client's process per pair,
//! "servers us" that of all five servers. At the end all numbers that have a target are printed once more.
//!
//! The *floor* is one thread with five plain sockets, which sends what other clients send; the *floor with our scripts*
//! is the same thread and sends what we send. See `support/floor.rs` for both, and for the raw notify; `support/proxy.rs`
//! for the network; `support/scenarios` for each question.
//!
//! A CPU figure can be trusted while other programs run, a latency only beside a floor of the same run, and neither of
//! a build without optimization (`--profile dev`), which is there to see that the benches work.

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
use std::path::Path;
use std::process::ExitCode;

use support::floor::process as floor;
use support::scenarios::{
    contended, faults, handover, held, idle, network, observer, once as locks_once, overload,
    permits, readers, rwlock, several, startup, threads, uncontended,
};
use support::setting::Setting;
use support::{Result, once, proxy, starter, worker};

type Scenario = fn(&Setting) -> Result;

const SCENARIOS: [(&str, Scenario); 16] = [
    ("uncontended", uncontended::run),
    ("threads", threads::run),
    ("overload", overload::run),
    ("faults", faults::run),
    ("held", held::run),
    ("handover", handover::run),
    ("contended", contended::run),
    ("idle", idle::run),
    ("rwlock", rwlock::run),
    ("readers", readers::run),
    ("several", several::run),
    ("permits", permits::run),
    ("observer", observer::run),
    ("once", locks_once::run),
    ("startup", startup::run),
    ("network", network::run),
];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    // The bench runs itself once more for whatever has to be a process of its own.
    match args
        .split_first()
        .map(|(first, rest)| (first.as_str(), rest))
    {
        Some((worker::FLAG, urls)) => return worker::run(urls),
        Some((floor::FLAG, urls)) => return floor::run(urls),
        Some((starter::FLAG, args)) => return starter::run(args),
        Some((proxy::FLAG, args)) => return proxy::run(args),
        Some((flag @ (once::OURS | once::BARE | once::NOTHING), urls)) => {
            return once::run(flag, urls);
        }
        _ => {}
    }
    let has = |flag: &str| args.iter().any(|it| it == flag);
    if !has("--bench") {
        // `cargo test --all-targets` runs benches too, and means to test them.
        println!("nothing to test here: `cargo bench` measures");
        return ExitCode::SUCCESS;
    }
    let flag = args.iter().position(|arg| arg == "--svg");
    let svg = flag.map(|at| args.get(at + 1).cloned().unwrap_or_default());
    let is_name =
        |at: usize, arg: &str| !arg.starts_with('-') && flag.is_none_or(|flag| at != flag + 1);
    let wanted: Vec<&String> = args
        .iter()
        .enumerate()
        .filter(|(at, arg)| is_name(*at, arg))
        .map(|(_, arg)| arg)
        .collect();
    if let Some(unknown) = wanted
        .iter()
        .find(|it| !SCENARIOS.iter().any(|(name, _)| name == *it))
    {
        eprintln!(
            "no scenario {unknown:?}; there are {:?}",
            SCENARIOS.map(|(name, _)| name)
        );
        return ExitCode::from(2);
    }

    let setting = Setting::new(has("--quick"));
    for (name, run) in SCENARIOS {
        if !wanted.is_empty() && !wanted.iter().any(|it| *it == name) {
            continue;
        }
        if let Err(err) = run(&setting) {
            eprintln!("{name}: {err}");
            return ExitCode::FAILURE;
        }
    }
    setting.print_verdicts();
    if let Some(Err(err)) = svg.map(|file| setting.write_charts(Path::new(&file))) {
        eprintln!("--svg: {err}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
