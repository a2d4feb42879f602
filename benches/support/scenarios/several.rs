//! What do several names at once cost, beside one?
//!
//! One thread, five nodes, nobody else: pairs on a mutex, and on sets of one, two and ten names. See `support/blocks.rs`.

use crate::support::Result;
use crate::support::blocks::{BLOCK, compare};
use crate::support::ours::Ours;
use crate::support::servers::Nodes;
use crate::support::setting::Setting;

const COUNTS: [usize; 4] = [0, 1, 2, 10];

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let ours = Ours::open(&nodes.urls())?;
    let sets = COUNTS.map(|it| {
        (0..it)
            .map(|i| format!("bench:several:{it}:{i}"))
            .collect::<Vec<_>>()
    });
    let block = |who: usize| match who {
        0 => ours.pairs(BLOCK, "bench:one"),
        _ => ours.pairs_of(BLOCK, &sets[who]),
    };
    let names = ["mutex", "multi of 1", "multi of 2", "multi of 10"];
    compare(
        setting,
        "several",
        &nodes,
        names,
        block,
        &[(2, "two names", 2.0), (3, "ten names", 6.0)],
    )
}
