//! What does a node cost that is a cluster, beside one that is a server?
//!
//! One thread, nobody else: pairs on one server and on a cluster of one master, and on three of each, in turns. Callers drive no
//! connections of clusters, so a worker is woken for each node and round.

use crate::support::Result;
use crate::support::ours::Ours;
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::Setting;
use crate::support::stats::{Table, median, num};

/// Pairs in a block.
const BLOCK: usize = 50;
const NAMES: [&str; 4] = ["one server", "one cluster", "three servers", "three clusters"];

/// The median block of a run.
struct Run {
    median_us: f64,
    client_us: f64,
}

pub(crate) fn run(setting: &Setting) -> Result {
    let (count, cycles) = (setting.runs(), setting.size(40, 10));
    setting.begin(&format!("clusters: one thread, {count} runs of {cycles} cycles of {BLOCK} pairs each, in turns"));
    let nodes = Nodes::start()?;
    let started = (0..3).map(|_| Ok(devnodes::Cluster::builder(1).start()?)).collect::<Result<Vec<_>>>()?;
    let (servers, clusters) = (nodes.urls(), started.iter().map(devnodes::Cluster::url).collect::<Vec<_>>());
    let urls = [&servers[..1], &clusters[..1], &servers[..3], &clusters[..3]];
    let ours = urls.into_iter().map(Ours::open).collect::<Result<Vec<_>>>()?;
    let mut runs = Runs::new(NAMES);
    for _ in 0..count {
        let mut blocks: Vec<(Vec<f64>, Vec<f64>)> = NAMES.iter().map(|_| Default::default()).collect();
        for cycle in 0..cycles {
            for who in (0..NAMES.len()).map(|it| (it + cycle) % NAMES.len()) {
                let block = ours[who].pairs(BLOCK, "bench:clusters");
                blocks[who].0.push(block.samples.median_us());
                blocks[who].1.push(block.cpu_us_per_pair());
            }
        }
        for (who, (medians, client)) in blocks.into_iter().enumerate() {
            runs.push(who, Run { median_us: median(&medians), client_us: median(&client) });
        }
    }
    let mut table = Table::new(&["", "median us", "x servers", "client us", "x servers"]);
    for (who, name) in runs.names() {
        // Beside as many servers.
        let base = who - who % 2;
        table.row([
            name.to_owned(),
            num(runs.median(who, |it| it.median_us), 1),
            num(runs.ratio(who, base, |it| it.median_us), 2),
            num(runs.median(who, |it| it.client_us), 1),
            num(runs.ratio(who, base, |it| it.client_us), 2),
        ]);
    }
    table.print();
    Ok(())
}
