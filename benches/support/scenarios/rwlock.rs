//! What do readers and writers cost, beside a mutex?
//!
//! One thread, five nodes, nobody else: blocks of pairs on a mutex, of reads and of writes, each alone and reads also beside
//! another reader that stays, in turn, in an order that rotates. Ratios are of the medians of the blocks. Processor time is per
//! pair, of the client, and of the five servers together.

use crate::support::Result;
use crate::support::ours::Ours;
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Table, median, num};

/// Pairs in a block.
const BLOCK: usize = 50;
const NAMES: [&str; 4] = ["mutex", "write", "read", "read beside a reader"];
const MUTEX: usize = 0;
const WRITE: usize = 1;
const READ: usize = 2;

#[derive(Default)]
struct Run {
    medians: Vec<f64>,
    client: Vec<f64>,
    servers: Vec<f64>,
    failed: usize,
}

impl Run {
    fn median_us(&self) -> f64 {
        median(&self.medians)
    }

    fn client_us(&self) -> f64 {
        median(&self.client)
    }

    fn servers_us(&self) -> f64 {
        median(&self.servers)
    }
}

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let (count, cycles) = (setting.runs(), setting.size(14, 6));
    setting.begin(&format!("rwlock: one thread, {count} runs of {cycles} cycles of {BLOCK} pairs each"));
    let ours = Ours::open(&nodes.urls())?;
    let _reader = ours.read("bench:shared")?;
    let block = |who: usize| match who {
        MUTEX => ours.pairs(BLOCK, "bench:one"),
        WRITE => ours.writes(BLOCK, "bench:alone"),
        READ => ours.reads(BLOCK, "bench:alone"),
        _ => ours.reads(BLOCK, "bench:shared"),
    };
    (0..NAMES.len()).for_each(|who| drop(block(who)));
    let mut runs = Runs::new(NAMES);
    for _ in 0..count {
        let mut seen: Vec<Run> = NAMES.iter().map(|_| Run::default()).collect();
        for cycle in 0..cycles {
            for who in (0..NAMES.len()).map(|i| (i + cycle) % NAMES.len()) {
                let (batch, servers) = nodes.metered(|| Ok(block(who)))?;
                let run = &mut seen[who];
                run.medians.push(batch.samples.median_us());
                run.client.push(batch.cpu_us_per_pair());
                run.servers.push(servers.as_secs_f64() * 1e6 / BLOCK as f64);
                run.failed += batch.failed;
            }
        }
        seen.into_iter().enumerate().for_each(|(who, run)| runs.push(who, run));
    }
    let mut table =
        Table::new(&["", "x mutex", "median us", "client us", "x mutex", "servers us", "x mutex", "failed"]);
    for (who, name) in runs.names() {
        table.row([
            name.to_owned(),
            num(runs.ratio(who, MUTEX, Run::median_us), 2),
            num(runs.median(who, Run::median_us), 1),
            num(runs.median(who, Run::client_us), 1),
            num(runs.ratio(who, MUTEX, Run::client_us), 2),
            num(runs.median(who, Run::servers_us), 1),
            num(runs.ratio(who, MUTEX, Run::servers_us), 2),
            runs.of(who).iter().map(|it| it.failed).sum::<usize>().to_string(),
        ]);
    }
    table.print();
    let most = |most: f64, what: &str, value: f64| setting.judge(Target::AtMost(most), what, value, 2);
    most(1.1, "a write, median, x mutex", runs.ratio(WRITE, MUTEX, Run::median_us));
    most(1.5, "a read, median, x mutex", runs.ratio(READ, MUTEX, Run::median_us));
    Ok(())
}
