//! What does one sick node cost?
//!
//! One of five is stopped, so that it keeps its connections and answers nothing; then one is killed, so that it
//! refuses. Blocks on healthy servers are run before and after each, and each client's faulty blocks are
//! compared with its own healthy ones. A client that waits for a majority alone should show ratios near 1.
//!
//! A killed node comes back empty and has no vote for one ttl. The next healthy block waits for that, save in
//! a quick run.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::Result;
use crate::support::contenders::Contender;
use crate::support::servers::{Fault, Nodes};
use crate::support::setting::Setting;
use crate::support::stats::{Batch, Table, num};

/// Not `rslock-ct`: a runtime with one thread waits for all nodes like the other.
const PEERS: [&str; 2] = ["rslock-mt", "redlock"];
/// A slow client's block ends here, with the pairs it has.
const BUDGET: Duration = Duration::from_secs(3);
/// A peer that has not ended one pair by then is taken to be hung for good.
const HUNG: Duration = Duration::from_secs(5);
/// Longer than the ttl.
const QUARANTINE: Duration = Duration::from_secs(11);

pub(crate) fn run(setting: &Setting) -> Result {
    let cycles = setting.size(3, 1);
    let pairs = setting.size(500, 100);
    for fault in [Fault::Paused, Fault::Killed] {
        setting.begin(&format!(
            "faults: one of five {fault:?}, {cycles} cycles, blocks of up to {pairs} pairs or {BUDGET:?}"
        ));
        let nodes = Nodes::start()?;
        let mut runs: Vec<Run> = Contender::ours_and(&PEERS, &nodes)?
            .into_iter()
            .map(Run::of)
            .collect();
        for run in &mut runs {
            run.block(pairs); // warm-up
            run.healthy = Batch::default();
        }
        for _ in 0..cycles {
            healthy(&mut runs, pairs);
            nodes.break_one(fault)?;
            for run in &mut runs {
                if let Some(batch) = run.block(pairs) {
                    run.faulty.merge(&batch);
                }
            }
            nodes.mend(fault)?;
            if fault == Fault::Killed && !setting.quick {
                thread::sleep(QUARANTINE);
            }
            healthy(&mut runs, pairs);
        }
        print(&runs);
    }
    Ok(())
}

fn healthy(runs: &mut [Run], pairs: usize) {
    for run in runs {
        if let Some(batch) = run.block(pairs) {
            run.healthy.merge(&batch);
        }
    }
}

/// A client, and what it did. Without a client, it is hung or gone.
struct Run {
    name: &'static str,
    client: Option<Contender>,
    healthy: Batch,
    faulty: Batch,
    note: String,
}

impl Run {
    fn of(client: Contender) -> Self {
        Self {
            name: client.name(),
            client: Some(client),
            healthy: Batch::default(),
            faulty: Batch::default(),
            note: String::new(),
        }
    }

    /// Runs `n` pairs at once if the first was quick; else one by one until the budget is spent.
    fn block(&mut self, n: usize) -> Option<Batch> {
        let start = Instant::now();
        let mut batch = self.pairs(1)?;
        if start.elapsed() < BUDGET / 100 {
            batch.merge(&self.pairs(n - 1)?);
            return Some(batch);
        }
        for _ in 1..n {
            if BUDGET < start.elapsed() {
                break;
            }
            batch.merge(&self.pairs(1)?);
        }
        Some(batch)
    }

    fn pairs(&mut self, n: usize) -> Option<Batch> {
        // A pair may be slow once in a while, so a long block gets more time.
        let patience = HUNG + BUDGET * u32::from(n > 1);
        match self.client.as_mut()?.pairs_within(n, patience) {
            Ok(batch) => Some(batch),
            Err(err) => {
                self.note = err.to_string();
                self.client = None;
                None
            }
        }
    }
}

fn print(runs: &[Run]) {
    let heading = [
        "",
        "",
        "pairs",
        "failed",
        "median us",
        "x healthy",
        "p99 us",
        "x healthy",
        "max us",
        "cpu us/pair",
        "",
    ];
    let mut table = Table::new(&heading);
    for run in runs {
        for (kind, batch) in [("healthy", &run.healthy), ("faulty", &run.faulty)] {
            let (own, base) = (&batch.samples, &run.healthy.samples);
            table.row([
                run.name.to_owned(),
                kind.to_owned(),
                own.len().to_string(),
                batch.failed.to_string(),
                num(own.median_us(), 1),
                num(own.median_us() / base.median_us(), 2),
                num(own.p99_us(), 0),
                num(own.p99_us() / base.p99_us(), 2),
                num(own.max_us(), 0),
                num(batch.cpu_us_per_pair(), 1),
                if kind == "faulty" {
                    run.note.clone()
                } else {
                    String::new()
                },
            ]);
        }
    }
    table.print();
}
