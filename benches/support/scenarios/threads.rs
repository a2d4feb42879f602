//! How many pairs per second do many threads get through, and at what cost?
//!
//! A key each, so that nobody waits for a lock: what is shared is the client. The windows of the contenders
//! alternate, in an order that turns round each time. The floor has one thread and is there for scale.

use std::time::Duration;

use crate::support::contenders::Contender;
use crate::support::servers::Nodes;
use crate::support::stats::{Table, Window, median, num};
use crate::support::{Result, Setting};

/// The peer to compare with: the others are slower by far here (a connection per command, or one thread).
const PEER: &str = "rslock-mt";

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let mut all = vec![Contender::floor(&nodes)?];
    all.extend(Contender::ours_and(setting, &[PEER], &nodes)?);
    for contender in &mut all {
        contender.pairs(50)?; // warm-up
    }
    for threads in [8, 64] {
        let windows = setting.size(5, 2);
        let window = Duration::from_millis(setting.size(2000, 500));
        println!("\nthreads: {threads} threads, a key each, {windows} windows of {window:?}");
        let mut seen: Vec<Vec<Window>> = all.iter().map(|_| Vec::new()).collect();
        for round in 0..windows {
            let count = all.len();
            for i in 0..count {
                let i = if round % 2 == 0 { i } else { count - 1 - i };
                seen[i].push(all[i].threads(threads, window)?);
            }
        }
        print(&all, &seen);
    }
    Ok(())
}

fn print(all: &[Contender], seen: &[Vec<Window>]) {
    let of = |windows: &[Window], number: fn(&Window) -> f64| median(&windows.iter().map(number).collect::<Vec<_>>());
    let mut table = Table::new(&["", "pairs/s", "x floor", "p50 us", "p99 us", "cpu us/pair", "x floor", "failed"]);
    let floor = &seen[0];
    for (contender, windows) in all.iter().zip(seen) {
        let [rate, least_rate] = [windows, floor].map(|it| of(it, Window::pairs_per_s));
        let [cpu, least_cpu] = [windows, floor].map(|it| of(it, Window::cpu_us_per_pair));
        table.row([
            contender.name().to_owned() + if matches!(contender, Contender::Floor(_)) { ", 1 thread" } else { "" },
            num(rate, 0),
            num(rate / least_rate, 2),
            num(of(windows, |it| it.p50_us), 0),
            num(of(windows, |it| it.p99_us), 0),
            num(cpu, 1),
            num(cpu / least_cpu, 2),
            windows.iter().map(|it| it.failed).sum::<usize>().to_string(),
        ]);
    }
    table.print();
    if let [_, ours, peer] = seen {
        println!(
            "  quorlock / {PEER}: {} x the pairs per second at {} x the processor time per pair",
            num(of(ours, Window::pairs_per_s) / of(peer, Window::pairs_per_s), 2),
            num(of(ours, Window::cpu_us_per_pair) / of(peer, Window::cpu_us_per_pair), 2),
        );
    }
}
