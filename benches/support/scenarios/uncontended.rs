//! What does an acquisition and its release cost when nobody else wants the lock?
//!
//! One thread, five nodes. Everybody runs a small block in turn, in an order that rotates from cycle to cycle,
//! so that whatever else the machine does hits all alike. The ratio is that of the medians of the blocks'
//! medians: the number to watch, for microseconds differ from machine to machine and from minute to minute.
//! "Bad" is the same for the blocks' 99th percentiles. The plain 99th percentile and the longest are of all pairs
//! together, and one disturbance of the machine decides them: they have no ratio.

use crate::support::contenders::Contender;
use crate::support::peers::CLIENTS;
use crate::support::servers::Nodes;
use crate::support::stats::{Batch, Table, median, num};
use crate::support::{Result, Setting};

/// Pairs in a block.
const BLOCK: usize = 50;

pub(crate) fn run(setting: &Setting) -> Result {
    let cycles = setting.size(40, 6);
    println!("\nuncontended: one thread, {cycles} cycles of {BLOCK} pairs each, in rotating order");
    let nodes = Nodes::start()?;
    let mut all = vec![Contender::floor(&nodes)?];
    all.extend(Contender::ours_and(setting, &CLIENTS, &nodes)?);

    let mut scores: Vec<Score> = Vec::new();
    for contender in &mut all {
        contender.pairs(setting.size(4 * BLOCK, BLOCK))?; // warm-up: connections, scripts, caches
        scores.push(Score { name: contender.name(), ..Score::default() });
    }
    for cycle in 0..cycles {
        let count = all.len();
        let order = (0..count).map(|i| (i + cycle) % count);
        for i in order {
            scores[i].enter(&all[i].pairs(BLOCK)?);
        }
    }
    print(&scores);
    Ok(())
}

/// What one contender did in all its blocks.
#[derive(Default)]
struct Score {
    name: &'static str,
    medians: Vec<f64>,
    bad: Vec<f64>,
    cpu: Vec<f64>,
    all: Batch,
}

impl Score {
    fn enter(&mut self, block: &Batch) {
        self.medians.push(block.samples.median_us());
        self.bad.push(block.samples.p99_us());
        self.cpu.push(block.cpu_us_per_pair());
        self.all.merge(block);
    }
}

fn print(scores: &[Score]) {
    let heading =
        ["", "median us", "x floor", "bad us", "x floor", "cpu us/pair", "x floor", "p99 us", "max us", "failed"];
    let mut table = Table::new(&heading);
    let floor = &scores[0];
    for score in scores {
        let all = &score.all.samples;
        let mut cells = vec![score.name.to_owned()];
        for blocks in [|it: &Score| median(&it.medians), |it: &Score| median(&it.bad), |it: &Score| median(&it.cpu)] {
            cells.push(num(blocks(score), 1));
            cells.push(num(blocks(score) / blocks(floor), 2));
        }
        cells.extend([num(all.p99_us(), 0), num(all.max_us(), 0), score.all.failed.to_string()]);
        table.row(cells);
    }
    table.print();
}
