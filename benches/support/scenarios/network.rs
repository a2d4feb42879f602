//! What is left of all that where the servers are not on the same machine?
//!
//! Loopback hides what batching and waiting cost. So this runs `uncontended`, `threads`, `handover` and `contended`
//! once more behind a [network](crate::support::proxy) on which a round trip takes a while, not always the same, and
//! the way to one of the servers is ten times as long; with the same floors behind the same network. A pair of ours is
//! meant to stay near the floor's median, and below its 99th percentile.
//!
//! The network is a process beside the clients and the servers. The share of a core that it took is printed: near one
//! per server, or near what the machine has, it would measure itself.

use std::time::{Duration, Instant};

use super::{contended, handover, threads, uncontended};
use crate::support::Result;
use crate::support::contenders::{FLOOR, OURS, SCRIPTS};
use crate::support::proxy::SLOW;
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::num;

const ROUND_TRIPS: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(5)];
const THREADS: usize = 64;
/// Eight workers, as threads and as processes.
const GROUPS: usize = 2;

/// Of the floor's median; and of its 99th percentile.
const MEDIAN_MAX: f64 = 1.1;
const P99_MAX: f64 = 1.0;

pub(crate) fn run(setting: &Setting) -> Result {
    for round_trip in ROUND_TRIPS {
        setting.begin(&format!(
            "network: a round trip takes {round_trip:?}, to one of five {:?}",
            round_trip * SLOW
        ));
        let nodes = Nodes::behind_network(round_trip)?;
        // Without redlock, whose pairs take ten times as long.
        measured(&nodes, || {
            let runs = uncontended::on(&nodes, setting, &["rslock-mt"], setting.size(10, 2))?;
            judge(
                setting,
                round_trip,
                &runs,
                FLOOR,
                uncontended::Run::median_us,
                uncontended::Run::p99_us,
            );
            Ok(())
        })?;
        measured(&nodes, || {
            let window = Duration::from_millis(setting.size(1500, 500));
            let runs = threads::on(
                &nodes,
                setting,
                &["rslock-mt", "rslock-ct"],
                THREADS,
                window,
            )?;
            judge(
                setting,
                round_trip,
                &runs,
                SCRIPTS,
                threads::Did::p50_us,
                threads::Did::p99_us,
            );
            let rate = runs.ratio(OURS, SCRIPTS, threads::Did::rate);
            println!(
                "  pairs per second, x floor with our scripts: {}",
                num(rate, 2)
            );
            Ok(())
        })?;
        measured(&nodes, || {
            handover::on(&nodes, setting, &[], setting.size(3, 1)).map(drop)
        })?;
        measured(&nodes, || {
            contended::on(&nodes, setting, false, &contended::GROUPS[..GROUPS]).map(drop)
        })?;
    }
    Ok(())
}

/// Whether a pair of ours stays near a floor's.
fn judge<T>(
    setting: &Setting,
    round_trip: Duration,
    runs: &Runs<T>,
    floor: usize,
    median: impl Fn(&T) -> f64,
    p99: impl Fn(&T) -> f64,
) {
    let judge = |most, what, number: &dyn Fn(&T) -> f64| {
        let what = format!("behind {round_trip:?}: {what}, x {}", runs.name(floor));
        setting.judge(
            Target::AtMost(most),
            &what,
            runs.ratio(OURS, floor, number),
            2,
        );
    };
    judge(MEDIAN_MAX, "median", &median);
    judge(P99_MAX, "p99", &p99);
}

/// Does the `work`, and says how much the network itself had to do.
fn measured(nodes: &Nodes, work: impl FnOnce() -> Result) -> Result {
    let (start, cpu) = (Instant::now(), nodes.network_cpu()?);
    work()?;
    let cpu = nodes.network_cpu()?.saturating_sub(cpu);
    println!(
        "  the network took {} of a core",
        num(cpu.as_secs_f64() / start.elapsed().as_secs_f64(), 2)
    );
    Ok(())
}
