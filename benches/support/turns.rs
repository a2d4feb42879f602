//! Managers of ours beside each other, one thread: blocks of pairs in turns, in an order that rotates.

use crate::support::ours::Ours;
use crate::support::runs::Runs;
use crate::support::setting::Setting;
use crate::support::stats::median;

/// Pairs in a block.
const BLOCK: usize = 50;

/// The median block of a run.
pub(crate) struct Run {
    pub(crate) median_us: f64,
    pub(crate) client_us: f64,
}

/// Measures `ours`, which are called `names`, with the lock `lock`.
pub(crate) fn compare<const N: usize>(
    setting: &Setting,
    scenario: &str,
    cycles: usize,
    names: [&'static str; N],
    ours: &[Ours; N],
    lock: &str,
) -> Runs<Run> {
    let count = setting.runs();
    setting.begin(&format!(
        "{scenario}: one thread, {count} runs of {cycles} cycles of {BLOCK} pairs each, in turns"
    ));
    let mut runs = Runs::new(names);
    for _ in 0..count {
        let mut blocks: [(Vec<f64>, Vec<f64>); N] = std::array::from_fn(|_| Default::default());
        for cycle in 0..cycles {
            for who in (0..N).map(|it| (it + cycle) % N) {
                let block = ours[who].pairs(BLOCK, lock);
                blocks[who].0.push(block.samples.median_us());
                blocks[who].1.push(block.cpu_us_per_pair());
            }
        }
        for (who, (medians, client)) in blocks.into_iter().enumerate() {
            runs.push(
                who,
                Run {
                    median_us: median(&medians),
                    client_us: median(&client),
                },
            );
        }
    }
    runs
}
