//! What kinds of locks cost beside a mutex, when nobody else is there.
//!
//! Blocks of pairs of each contender, in turn, in an order that rotates. Ratios are of the medians of the blocks. Processor time
//! is per pair, of the client, and of the five servers together.

use crate::support::Result;
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Batch, Table, median, num};

/// Pairs in a block.
pub(crate) const BLOCK: usize = 50;

/// What one contender did in one run.
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

/// Measures `names`, of which the first is the mutex; `block` lets one of them do [`BLOCK`] pairs. `targets`: what the median
/// of some of them is meant to be at most, as a multiple of the mutex's.
pub(crate) fn compare<const N: usize>(
    setting: &Setting,
    scenario: &str,
    nodes: &Nodes,
    names: [&'static str; N],
    block: impl Fn(usize) -> Batch,
    targets: &[(usize, &str, f64)],
) -> Result {
    let (count, cycles) = (setting.runs(), setting.size(14, 6));
    setting.begin(&format!(
        "{scenario}: one thread, {count} runs of {cycles} cycles of {BLOCK} pairs each"
    ));
    (0..N).for_each(|who| drop(block(who)));
    let mut runs = Runs::new(names);
    for _ in 0..count {
        let mut seen: Vec<Run> = names.iter().map(|_| Run::default()).collect();
        for cycle in 0..cycles {
            for who in (0..N).map(|i| (i + cycle) % N) {
                let (batch, servers) = nodes.metered(|| Ok(block(who)))?;
                let run = &mut seen[who];
                run.medians.push(batch.samples.median_us());
                run.client.push(batch.cpu_us_per_pair());
                run.servers.push(servers.as_secs_f64() * 1e6 / BLOCK as f64);
                run.failed += batch.failed;
            }
        }
        seen.into_iter()
            .enumerate()
            .for_each(|(who, run)| runs.push(who, run));
    }
    let mut table = Table::new(&[
        "",
        "x mutex",
        "median us",
        "client us",
        "x mutex",
        "servers us",
        "x mutex",
        "failed",
    ]);
    for (who, name) in runs.names() {
        table.row([
            name.to_owned(),
            num(runs.ratio(who, 0, Run::median_us), 2),
            num(runs.median(who, Run::median_us), 1),
            num(runs.median(who, Run::client_us), 1),
            num(runs.ratio(who, 0, Run::client_us), 2),
            num(runs.median(who, Run::servers_us), 1),
            num(runs.ratio(who, 0, Run::servers_us), 2),
            runs.of(who)
                .iter()
                .map(|it| it.failed)
                .sum::<usize>()
                .to_string(),
        ]);
    }
    table.print();
    for (who, what, most) in targets {
        let what = format!("{what}, median, x mutex");
        setting.judge(
            Target::AtMost(*most),
            &what,
            runs.ratio(*who, 0, Run::median_us),
            2,
        );
    }
    Ok(())
}
