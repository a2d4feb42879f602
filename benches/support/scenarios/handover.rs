//! How soon does a waiter have a lock that is released?
//!
//! Two take turns: while one holds the lock for some milliseconds the other waits for it. Measured is the time from
//! the call of release in the one to the return of `lock` in the other. First between two processes, then between two
//! threads of one manager, where the client itself can know who waits.
//!
//! Whoever has just slept is slower than whoever is in full swing: caches are cold and the processor has dozed. So
//! what a hand-over is compared with is measured both ways in the same run: "in a row", and "rested", after pauses as
//! long as the holds. The targets are meant for the former, which is the harder one.

use std::time::Duration;

use crate::support::ours::Ours;
use crate::support::peer::Peer;
use crate::support::servers::Nodes;
use crate::support::stats::{Samples, Table, Target, num};
use crate::support::{Result, Setting};

/// The peer to compare with, with the retries it comes with.
const PEER: &str = "rslock-mt";
/// Pairs, or acquisitions, in a row and rested, per cycle.
const BLOCK: usize = 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// A waiter that has waited for less may not have been refused yet: it just came late.
const WAITED_NS: u64 = 1_000_000;

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    between_processes(setting, &nodes)?;
    between_threads(setting, &nodes)
}

/// As long as a lock is held before it is handed over: long enough for the other one to be waiting.
fn hold() -> Duration {
    Duration::from_micros(fastrand::u64(2_000..=6_000))
}

fn between_processes(setting: &Setting, nodes: &Nodes) -> Result {
    let cycles = setting.size(10, 2);
    println!("\nhandover: between two processes, {cycles} cycles");
    let urls = nodes.urls();
    let mut all = Vec::new();
    for (name, fair) in [("quorlock", false), ("quorlock, fair", true)] {
        all.push(Two::new(name, fair, setting.size(50, 25), [Peer::ours(&urls)?, Peer::ours(&urls)?])?);
    }
    if let Some(peers) = &setting.peers {
        // It sleeps for a tenth of a second before it looks again, so there is time for fewer.
        all.push(Two::new(PEER, false, setting.size(20, 5), [peers.start(PEER, &urls)?, peers.start(PEER, &urls)?])?);
    }
    for _ in 0..cycles {
        for two in &mut all {
            two.cycle()?;
        }
    }
    print("pair", all.iter().map(|it| (it.name, &it.seen)));
    for two in all.iter().filter(|it| it.seen.early != 0) {
        println!("  {}: {} hand-overs not counted, for nobody had been waiting yet", two.name, two.seen.early);
    }
    for two in all.iter().filter(|it| it.name != PEER) {
        let Seen { hand_overs, row, .. } = &two.seen;
        let ratio = hand_overs.median_us() / row.median_us();
        Target::AtMost(3.0).judge(&format!("{}: median, x pair", two.name), ratio, 2);
        Target::AtMost(3.0).judge(&format!("{}: p99, ms", two.name), hand_overs.p99_us() / 1e3, 2);
    }
    Ok(())
}

fn between_threads(setting: &Setting, nodes: &Nodes) -> Result {
    let (cycles, block) = (setting.size(10, 2), setting.size(50, 25));
    println!("\nhandover: between two threads of one manager, {cycles} cycles");
    let ours = Ours::open(&nodes.urls())?;
    let name = "bench:handover:threads";
    ours.acquires(BLOCK, name, Duration::default)?; // warm-up
    let mut seen = Seen::default();
    for _ in 0..cycles {
        seen.hand_overs.extend(&ours.hand_overs(block, name, hold)?);
        seen.row.extend(&ours.acquires(BLOCK, name, Duration::default)?);
        seen.rested.extend(&ours.acquires(BLOCK, name, hold)?);
    }
    print("acquire", [("quorlock", &seen)]);
    let ratio = seen.hand_overs.median_us() / seen.row.median_us();
    Target::AtMost(1.2).judge("median, x acquire", ratio, 2);
    Ok(())
}

/// What was measured, and what it is to be compared with.
#[derive(Default)]
struct Seen {
    hand_overs: Samples,
    /// Uncontended, one at once after the other.
    row: Samples,
    /// Uncontended, after a pause each.
    rested: Samples,
    /// Hand-overs to somebody who had not been waiting.
    early: usize,
}

/// Two processes of one client.
struct Two {
    name: &'static str,
    fair: bool,
    /// Hand-overs per cycle.
    block: usize,
    ends: [Peer; 2],
    seen: Seen,
}

impl Two {
    fn new(name: &'static str, fair: bool, block: usize, mut ends: [Peer; 2]) -> Result<Self> {
        for end in &mut ends {
            end.warm_up()?;
        }
        Ok(Self { name, fair, block, ends, seen: Seen::default() })
    }

    fn cycle(&mut self) -> Result {
        self.hand_overs()?;
        let key = format!("bench:{}:pairs", self.ends[0].name());
        self.seen.row.extend(&self.ends[0].pairs(BLOCK, &key, PATIENCE)?.samples);
        for _ in 0..BLOCK {
            std::thread::sleep(hold());
            self.seen.rested.extend(&self.ends[0].pairs(1, &key, PATIENCE)?.samples);
        }
        Ok(())
    }

    fn hand_overs(&mut self) -> Result {
        let key = format!("bench:{}:{}", self.ends[0].name(), self.fair);
        let [holder, waiter] = &mut self.ends;
        let (mut holder, mut waiter) = (holder, waiter);
        holder.begin_lock(&key, self.fair)?;
        holder.locked()?;
        for _ in 0..self.block {
            waiter.begin_lock(&key, self.fair)?;
            let released = holder.unlock(hold())?;
            let locked = waiter.locked()?;
            let took = locked.at.checked_sub(released).ok_or("locked before the holder had released")?;
            if locked.called + WAITED_NS <= released {
                self.seen.hand_overs.push_ns(took);
            } else {
                self.seen.early += 1;
            }
            (holder, waiter) = (waiter, holder);
        }
        holder.unlock(Duration::ZERO)?;
        Ok(())
    }
}

fn print<'a>(what: &str, rows: impl IntoIterator<Item = (&'static str, &'a Seen)>) {
    let (row, rested) = (format!("{what} in a row us"), format!("{what} rested us"));
    let heading = ["", "hand-overs", "median us", "p90 us", "p99 us", "max us", &row, "x", &rested, "x"];
    let mut table = Table::new(&heading);
    for (name, Seen { hand_overs, row, rested, .. }) in rows {
        let median = hand_overs.median_us();
        table.row([
            name.to_owned(),
            hand_overs.len().to_string(),
            num(median, 0),
            num(hand_overs.p90_us(), 0),
            num(hand_overs.p99_us(), 0),
            num(hand_overs.max_us(), 0),
            num(row.median_us(), 0),
            num(median / row.median_us(), 2),
            num(rested.median_us(), 0),
            num(median / rested.median_us(), 2),
        ]);
    }
    table.print();
}
