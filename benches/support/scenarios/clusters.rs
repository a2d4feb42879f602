//! What does a node cost that is a cluster, beside one that is a server?
//!
//! One thread, nobody else: pairs on one server and on a cluster of one master, and on three of each, in turns. Callers drive no
//! connections of clusters, so a worker is woken for each node and round.

use crate::support::Result;
use crate::support::ours::Ours;
use crate::support::servers::Nodes;
use crate::support::setting::Setting;
use crate::support::stats::{Table, num};
use crate::support::turns;

const NAMES: [&str; 4] = [
    "one server",
    "one cluster",
    "three servers",
    "three clusters",
];

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let started = (0..3)
        .map(|_| Ok(devnodes::Cluster::builder(1).start()?))
        .collect::<Result<Vec<_>>>()?;
    let (servers, clusters) = (
        nodes.urls(),
        started
            .iter()
            .map(devnodes::Cluster::url)
            .collect::<Vec<_>>(),
    );
    let urls = [&servers[..1], &clusters[..1], &servers[..3], &clusters[..3]];
    let ours = [
        Ours::open(urls[0])?,
        Ours::open(urls[1])?,
        Ours::open(urls[2])?,
        Ours::open(urls[3])?,
    ];
    let runs = turns::compare(
        setting,
        "clusters",
        setting.size(40, 10),
        NAMES,
        &ours,
        "bench:clusters",
    );
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
