//! What do readers and writers cost, beside a mutex?
//!
//! One thread, five nodes, nobody else: pairs on a mutex, of reads and of writes, each alone, and reads also beside another
//! reader that stays. See `support/blocks.rs`.

use crate::support::Result;
use crate::support::blocks::{BLOCK, compare};
use crate::support::ours::Ours;
use crate::support::servers::Nodes;
use crate::support::setting::Setting;

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let ours = Ours::open(&nodes.urls())?;
    let _reader = ours.read("bench:shared")?;
    let block = |who: usize| match who {
        0 => ours.pairs(BLOCK, "bench:one"),
        1 => ours.writes(BLOCK, "bench:alone"),
        2 => ours.reads(BLOCK, "bench:alone"),
        _ => ours.reads(BLOCK, "bench:shared"),
    };
    let names = ["mutex", "write", "read", "read beside a reader"];
    compare(
        setting,
        "rwlock",
        &nodes,
        names,
        block,
        &[(1, "a write", 1.1), (2, "a read", 1.5)],
    )
}
