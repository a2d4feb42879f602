//! What does it cost to be told what a manager does?
//!
//! One thread, five nodes, as in `uncontended`: a manager that nobody listens to, and one with an observer that counts the
//! events of each kind, in turns. What a recorder of metrics costs besides is measured where there is one: see
//! `examples/prometheus/cost.rs`.

use crate::support::Result;
use crate::support::ours::Ours;
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Table, median, num};

/// Pairs in a block.
const BLOCK: usize = 50;

const NOBODY: usize = 0;
const COUNTS: usize = 1;

/// The median block of a run.
struct Run {
    median_us: f64,
    client_us: f64,
}

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let (count, cycles) = (setting.runs(), setting.size(60, 20));
    setting.begin(&format!("observer: one thread, {count} runs of {cycles} cycles of {BLOCK} pairs each, in turns"));
    let ours = [Ours::open(&nodes.urls())?, Ours::open_observed(&nodes.urls())?];
    let mut runs = Runs::new(["nobody listens", "an observer that counts"]);
    for _ in 0..count {
        let mut blocks = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        for cycle in 0..cycles {
            for who in [cycle % 2, 1 - cycle % 2] {
                let block = ours[who].pairs(BLOCK, "bench:observed");
                blocks[who].0.push(block.samples.median_us());
                blocks[who].1.push(block.cpu_us_per_pair());
            }
        }
        for (who, (medians, client)) in blocks.into_iter().enumerate() {
            runs.push(who, Run { median_us: median(&medians), client_us: median(&client) });
        }
    }
    let mut table = Table::new(&["", "median us", "x nobody", "client us", "x nobody"]);
    for (who, name) in runs.names() {
        table.row([
            name.to_owned(),
            num(runs.median(who, |it| it.median_us), 1),
            num(runs.ratio(who, NOBODY, |it| it.median_us), 3),
            num(runs.median(who, |it| it.client_us), 1),
            num(runs.ratio(who, NOBODY, |it| it.client_us), 3),
        ]);
    }
    table.print();
    let excess = runs.excess(COUNTS, NOBODY, |it| it.client_us);
    setting.judge(Target::AtMost(5.0), "an observer: client's processor time more per pair, us", excess, 1);
    Ok(())
}
