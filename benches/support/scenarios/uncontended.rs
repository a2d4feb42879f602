//! What does an acquisition and its release cost when nobody else wants the lock?
//!
//! One thread, five nodes. Everybody runs a small block in turn, in an order that rotates from cycle to cycle,
//! so that whatever else the machine does hits all alike. The ratio is that of the medians of the blocks'
//! medians: the number to watch, for microseconds differ from machine to machine and from minute to minute.
//! "Bad" is the same for the blocks' 99th percentiles. The plain 99th percentile is of all pairs of a run together. The
//! longest is of all runs, and one disturbance of the machine decides it: it has no ratio.
//!
//! Processor time is per pair: of the client's process, and of the five servers together, each of which wakes up twice
//! for it here; see `threads` for what the commands alone take.

use crate::support::Result;
use crate::support::contenders::{Contender, FLOOR, OURS, SCRIPTS};
use crate::support::peer::CLIENTS;
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Batch, Table, median, num};

/// Pairs in a block.
const BLOCK: usize = 50;

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let runs = on(&nodes, setting, &CLIENTS, setting.size(14, 6))?;
    let title =
        "One thread, nobody else: median of acquire and release, × floor. Shorter is better.";
    setting.chart(title.to_owned(), &runs, FLOOR, Run::median_us);
    let most = |most: f64, what: &str, value: f64, digits| {
        setting.judge(Target::AtMost(most), what, value, digits)
    };
    most(
        1.2,
        "median, x floor",
        runs.ratio(OURS, FLOOR, Run::median_us),
        2,
    );
    most(
        1.05,
        "median, x floor with our scripts",
        runs.ratio(OURS, SCRIPTS, Run::median_us),
        2,
    );
    most(
        6.0,
        "client's processor time above that floor's, us",
        runs.excess(OURS, SCRIPTS, Run::client_us),
        1,
    );
    Ok(())
}

/// Runs so many cycles in each run, and prints them.
pub(crate) fn on(
    nodes: &Nodes,
    setting: &Setting,
    clients: &[&'static str],
    cycles: usize,
) -> Result<Runs<Run>> {
    let count = setting.runs();
    setting.begin(&format!(
        "uncontended: one thread, {count} runs of {cycles} cycles of {BLOCK} pairs each, in rotating order"
    ));
    let mut all = Contender::all(clients, nodes)?;
    for contender in &mut all {
        contender.pairs(BLOCK)?; // warm-up: connections, scripts, caches
    }
    let mut runs = Runs::new(all.iter().map(Contender::name));
    for _ in 0..count {
        let mut seen: Vec<Run> = all.iter().map(|_| Run::default()).collect();
        for cycle in 0..cycles {
            let clients = all.len();
            for i in (0..clients).map(|i| (i + cycle) % clients) {
                let (block, servers) = nodes.metered(|| all[i].pairs(BLOCK))?;
                seen[i].enter(&block, servers.as_secs_f64() * 1e6 / BLOCK as f64);
            }
        }
        seen.into_iter()
            .enumerate()
            .for_each(|(who, run)| runs.push(who, run));
    }
    print(&runs);
    Ok(runs)
}

/// What one contender did in all blocks of a run.
#[derive(Default)]
pub(crate) struct Run {
    medians: Vec<f64>,
    bad: Vec<f64>,
    client: Vec<f64>,
    servers: Vec<f64>,
    all: Batch,
}

impl Run {
    fn enter(&mut self, block: &Batch, servers_us: f64) {
        self.medians.push(block.samples.median_us());
        self.bad.push(block.samples.p99_us());
        self.client.push(block.cpu_us_per_pair());
        self.servers.push(servers_us);
        self.all.merge(block);
    }

    pub(crate) fn median_us(&self) -> f64 {
        median(&self.medians)
    }

    pub(crate) fn p99_us(&self) -> f64 {
        self.all.samples.p99_us()
    }

    fn bad_us(&self) -> f64 {
        median(&self.bad)
    }

    fn client_us(&self) -> f64 {
        median(&self.client)
    }

    fn servers_us(&self) -> f64 {
        median(&self.servers)
    }
}

fn print(runs: &Runs<Run>) {
    let heading = [
        "",
        "x floor",
        "x scripts",
        "median us",
        "bad us",
        "x floor",
        "client us",
        "above",
        "servers us",
        "x floor",
        "p99 us",
        "max us",
        "failed",
    ];
    let mut table = Table::new(&heading);
    for (who, name) in runs.names() {
        let all = runs.of(who).iter().map(|it| &it.all);
        table.row([
            name.to_owned(),
            num(runs.ratio(who, FLOOR, Run::median_us), 2),
            num(runs.ratio(who, SCRIPTS, Run::median_us), 2),
            num(runs.median(who, Run::median_us), 1),
            num(runs.median(who, Run::bad_us), 1),
            num(runs.ratio(who, FLOOR, Run::bad_us), 2),
            num(runs.median(who, Run::client_us), 1),
            num(runs.excess(who, SCRIPTS, Run::client_us), 1),
            num(runs.median(who, Run::servers_us), 1),
            num(runs.ratio(who, FLOOR, Run::servers_us), 2),
            num(runs.median(who, Run::p99_us), 0),
            num(
                all.clone()
                    .map(|it| it.samples.max_us())
                    .fold(f64::NAN, f64::max),
                0,
            ),
            all.map(|it| it.failed).sum::<usize>().to_string(),
        ]);
    }
    table.print();
}
