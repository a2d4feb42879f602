//! What does it cost to be told what a manager does?
//!
//! One thread, five nodes, as in `uncontended`: a manager that nobody listens to, and one with an observer that counts the
//! events of each kind, in turns. What a recorder of metrics costs besides is measured where there is one: see
//! `examples/prometheus/cost.rs`.

use crate::support::Result;
use crate::support::ours::Ours;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Table, num};
use crate::support::turns;

const NOBODY: usize = 0;
const COUNTS: usize = 1;

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let ours = [
        Ours::open(&nodes.urls())?,
        Ours::open_observed(&nodes.urls())?,
    ];
    let names = ["nobody listens", "an observer that counts"];
    let runs = turns::compare(
        setting,
        "observer",
        setting.size(60, 20),
        names,
        &ours,
        "bench:observed",
    );
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
    setting.judge(
        Target::AtMost(5.0),
        "an observer: client's processor time more per pair, us",
        excess,
        1,
    );
    Ok(())
}
