//! How many pairs per second do many threads get through, and at what cost?
//!
//! A key each, so that nobody waits for a lock: what is shared is the client. Two floors have one thread, with as many
//! pairs under way as the others have threads or tasks; a third has threads. The windows of all alternate, in an order
//! that turns round each time. Processor time is per pair: of the client's process, and of the five servers together.

use std::time::Duration;

use crate::support::Result;
use crate::support::contenders::{CALLERS, Contender, FLOOR, OURS, SCRIPTS};
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Table, Window, num};

/// The peer to compare with, on a runtime with threads and on one without: the others are slower by far here (a
/// connection per command).
const PEERS: [&str; 2] = ["rslock-mt", "rslock-ct"];
/// The windows of a run.
const WINDOWS: usize = 2;
const MANY: usize = 64;

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let window = Duration::from_millis(setting.size(1500, 300));
    for threads in [8, MANY] {
        let runs = on(&nodes, setting, &PEERS, threads, window)?;
        if threads == MANY {
            let title = format!(
                "{MANY} threads, a key each: pairs per second, × floor with our scripts. Longer is better."
            );
            setting.chart(title, &runs, SCRIPTS, Did::rate);
            let rate = |base| runs.ratio(OURS, base, Did::rate);
            setting.judge(
                Target::AtMost(28.0),
                "client's processor time per pair, us",
                runs.median(OURS, Did::client_us),
                1,
            );
            setting.judge(
                Target::AtMost(60.0),
                "servers' processor time per pair, us",
                runs.median(OURS, Did::servers_us),
                1,
            );
            setting.judge(
                Target::AtLeast(0.9),
                "pairs per second, x floor with our scripts",
                rate(SCRIPTS),
                2,
            );
            setting.judge(
                Target::AtLeast(1.0),
                "pairs per second, x floor of threads",
                rate(CALLERS),
                2,
            );
            let p99 = runs.ratio(OURS, CALLERS, Did::p99_us);
            setting.judge(
                Target::AtMost(1.1),
                "p99 of a pair, x floor of threads",
                p99,
                2,
            );
            for (peer, least) in [("rslock-ct", 0.85), ("rslock-mt", 1.0)] {
                let Some(who) = runs.find(peer) else { continue };
                setting.judge(
                    Target::AtLeast(least),
                    &format!("pairs per second, x {peer}"),
                    rate(who),
                    2,
                );
            }
        }
    }
    Ok(())
}

/// Runs so many threads, or pairs at a time, and prints what they did.
pub(crate) fn on(
    nodes: &Nodes,
    setting: &Setting,
    clients: &[&'static str],
    threads: usize,
    window: Duration,
) -> Result<Runs<Did>> {
    let count = setting.runs();
    setting.begin(&format!(
        "threads: {threads} threads, a key each, {count} runs of {WINDOWS} windows of {window:?}"
    ));
    let mut all = Contender::all(clients, nodes)?;
    for contender in &mut all {
        contender.pairs(50)?; // warm-up
        contender.threads(threads, window / 10)?;
    }
    let mut runs = Runs::new(all.iter().map(Contender::name));
    for _ in 0..count {
        let mut seen: Vec<Did> = all.iter().map(|_| Did::default()).collect();
        for turn in 0..WINDOWS {
            for i in 0..all.len() {
                let i = if turn % 2 == 0 { i } else { all.len() - 1 - i };
                let (window, servers) = nodes.metered(|| all[i].threads(threads, window))?;
                seen[i].windows.push(window);
                seen[i].servers += servers;
            }
        }
        seen.into_iter()
            .enumerate()
            .for_each(|(who, did)| runs.push(who, did));
    }
    print(&runs);
    Ok(runs)
}

/// What one contender did in the windows of a run.
#[derive(Default)]
pub(crate) struct Did {
    windows: Vec<Window>,
    servers: Duration,
}

impl Did {
    fn sum(&self, number: fn(&Window) -> f64) -> f64 {
        self.windows.iter().map(number).sum()
    }

    fn pairs(&self) -> f64 {
        self.sum(|it| it.ok as f64)
    }

    pub(crate) fn rate(&self) -> f64 {
        self.pairs() / self.sum(|it| it.elapsed.as_secs_f64())
    }

    fn client_us(&self) -> f64 {
        self.sum(|it| it.cpu.as_secs_f64()) * 1e6 / self.pairs()
    }

    fn servers_us(&self) -> f64 {
        self.servers.as_secs_f64() * 1e6 / self.pairs()
    }

    /// The mean of the windows' medians.
    pub(crate) fn p50_us(&self) -> f64 {
        self.sum(|it| it.p50_us) / self.windows.len() as f64
    }

    /// The mean of the windows' 99th percentiles.
    pub(crate) fn p99_us(&self) -> f64 {
        self.sum(|it| it.p99_us) / self.windows.len() as f64
    }

    fn failed(&self) -> usize {
        self.windows.iter().map(|it| it.failed).sum()
    }
}

fn print(runs: &Runs<Did>) {
    let heading = [
        "",
        "x floor",
        "x scripts",
        "x threads",
        "pairs/s",
        "client us",
        "x floor",
        "servers us",
        "x floor",
        "p50 us",
        "p99 us",
        "failed",
    ];
    let mut table = Table::new(&heading);
    for (who, name) in runs.names() {
        table.row([
            name.to_owned(),
            num(runs.ratio(who, FLOOR, Did::rate), 2),
            num(runs.ratio(who, SCRIPTS, Did::rate), 2),
            num(runs.ratio(who, CALLERS, Did::rate), 2),
            num(runs.median(who, Did::rate), 0),
            num(runs.median(who, Did::client_us), 1),
            num(runs.ratio(who, FLOOR, Did::client_us), 2),
            num(runs.median(who, Did::servers_us), 1),
            num(runs.ratio(who, FLOOR, Did::servers_us), 2),
            num(runs.median(who, Did::p50_us), 0),
            num(runs.median(who, Did::p99_us), 0),
            runs.of(who)
                .iter()
                .map(Did::failed)
                .sum::<usize>()
                .to_string(),
        ]);
    }
    table.print();
}
