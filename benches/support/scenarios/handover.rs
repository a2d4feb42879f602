//! How soon does a waiter have a lock that is released?
//!
//! Two take turns: while one holds the lock for some milliseconds the other waits for it. Measured is the time from
//! the call of release in the one to the return of `lock` in the other. First between two processes, beside the [raw
//! notify](crate::support::floor), then between two threads of one manager.
//!
//! Whoever has just slept is slower than whoever is in full swing: caches are cold and the processor has dozed. So
//! what a hand-over is compared with is measured both ways in the same run: "in a row", and "rested", after pauses as
//! long as the holds. The targets are meant for the former, which is the harder one.

use std::time::Duration;

use crate::support::Result;
use crate::support::ours::Ours;
use crate::support::peer::Peer;
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Samples, Table, num};

/// The peer to compare with, with the retries it comes with.
const PEER: &str = "rslock-mt";
/// Pairs, or acquisitions, in a row and rested, per cycle.
const BLOCK: usize = 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// A waiter that has waited for less may not have been refused yet: it just came late.
const WAITED_NS: u64 = 1_000_000;

const NOTIFY: &str = "raw notify";
/// Our number, beside the notify's, which is 0.
const OURS: usize = 1;

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let runs = on(&nodes, setting, &[PEER], setting.size(4, 2))?;
    let judge = |most: f64, what: &str, value| setting.judge(Target::AtMost(most), what, value, 2);
    judge(
        1.4,
        "median, x raw notify",
        runs.ratio(OURS, 0, Seen::median_us),
    );
    judge(3.0, "median, x pair", runs.median(OURS, Seen::in_pairs));
    judge(3.0, "p99, ms", runs.median(OURS, Seen::p99_us) / 1e3);
    between_threads(setting, &nodes)
}

/// As long as a lock is held before it is handed over: long enough for the other one to be waiting.
fn hold() -> Duration {
    Duration::from_micros(fastrand::u64(2_000..=6_000))
}

/// Hands over between processes, so many cycles in each run, and prints how long that took.
pub(crate) fn on(
    nodes: &Nodes,
    setting: &Setting,
    clients: &[&'static str],
    cycles: usize,
) -> Result<Runs<Seen>> {
    let count = setting.runs();
    setting.begin(&format!(
        "handover: between two processes, {count} runs of {cycles} cycles"
    ));
    let (urls, block) = (nodes.urls(), setting.size(50, 25));
    let mut all = vec![
        Two::new(NOTIFY, block, [Peer::floor(&urls)?, Peer::floor(&urls)?])?,
        Two::new("quorlock", block, [Peer::ours(&urls)?, Peer::ours(&urls)?])?,
    ];
    for client in clients {
        // It sleeps for a tenth of a second before it looks again, so there is time for fewer.
        let ends = [Peer::other(client, &urls)?, Peer::other(client, &urls)?];
        all.push(Two::new(client, setting.size(20, 5), ends)?);
    }
    let mut runs = Runs::new(all.iter().map(|it| it.name));
    for _ in 0..count {
        let mut seen: Vec<Seen> = all.iter().map(|_| Seen::default()).collect();
        for _ in 0..cycles {
            for (two, seen) in all.iter_mut().zip(&mut seen) {
                two.cycle(seen)?;
            }
        }
        seen.into_iter()
            .enumerate()
            .for_each(|(who, seen)| runs.push(who, seen));
    }
    print("pair", &runs);
    for (who, name) in runs.names() {
        let early: usize = runs.of(who).iter().map(|it| it.early).sum();
        if early != 0 {
            println!("  {name}: {early} hand-overs not counted, for nobody had been waiting yet");
        }
    }
    Ok(runs)
}

fn between_threads(setting: &Setting, nodes: &Nodes) -> Result {
    let (count, cycles, block) = (setting.runs(), setting.size(4, 2), setting.size(50, 25));
    setting.begin(&format!(
        "handover: between two threads of one manager, {count} runs of {cycles} cycles"
    ));
    let ours = Ours::open(&nodes.urls())?;
    let name = "bench:handover:threads";
    ours.acquires(BLOCK, name, Duration::default)?; // warm-up
    let mut runs = Runs::new(["quorlock"]);
    for _ in 0..count {
        let mut seen = Seen::default();
        for _ in 0..cycles {
            seen.hand_overs.extend(&ours.hand_overs(block, name, hold)?);
            seen.row
                .extend(&ours.acquires(BLOCK, name, Duration::default)?);
            seen.rested.extend(&ours.acquires(BLOCK, name, hold)?);
        }
        runs.push(0, seen);
    }
    print("acquire", &runs);
    setting.judge(
        Target::AtMost(1.2),
        "median, x acquire",
        runs.median(0, Seen::in_pairs),
        2,
    );
    Ok(())
}

/// What was measured, and what it is to be compared with.
#[derive(Default)]
pub(crate) struct Seen {
    hand_overs: Samples,
    /// Uncontended, one at once after the other.
    row: Samples,
    /// Uncontended, after a pause each.
    rested: Samples,
    /// Hand-overs to somebody who had not been waiting.
    early: usize,
}

impl Seen {
    pub(crate) fn median_us(&self) -> f64 {
        self.hand_overs.median_us()
    }

    pub(crate) fn p99_us(&self) -> f64 {
        self.hand_overs.p99_us()
    }

    fn in_pairs(&self) -> f64 {
        self.median_us() / self.row.median_us()
    }

    fn in_rested_pairs(&self) -> f64 {
        self.median_us() / self.rested.median_us()
    }
}

/// Two processes of one client.
struct Two {
    name: &'static str,
    /// Hand-overs per cycle.
    block: usize,
    ends: [Peer; 2],
}

impl Two {
    fn new(name: &'static str, block: usize, mut ends: [Peer; 2]) -> Result<Self> {
        for end in &mut ends {
            end.warm_up()?;
        }
        Ok(Self { name, block, ends })
    }

    fn cycle(&mut self, seen: &mut Seen) -> Result {
        self.hand_overs(seen)?;
        let key = format!("bench:{}:pairs", self.ends[0].name());
        seen.row
            .extend(&self.ends[0].pairs(BLOCK, &key, PATIENCE)?.samples);
        for _ in 0..BLOCK {
            std::thread::sleep(hold());
            seen.rested
                .extend(&self.ends[0].pairs(1, &key, PATIENCE)?.samples);
        }
        Ok(())
    }

    fn hand_overs(&mut self, seen: &mut Seen) -> Result {
        let key = format!("bench:{}:handover", self.ends[0].name());
        let [holder, waiter] = &mut self.ends;
        let (mut holder, mut waiter) = (holder, waiter);
        holder.begin_lock(&key)?;
        holder.locked()?;
        for _ in 0..self.block {
            waiter.begin_lock(&key)?;
            let released = holder.unlock(hold())?;
            let locked = waiter.locked()?;
            let took = locked
                .at
                .checked_sub(released)
                .ok_or("locked before the holder had released")?;
            if locked.called + WAITED_NS <= released {
                seen.hand_overs.push_ns(took);
            } else {
                seen.early += 1;
            }
            (holder, waiter) = (waiter, holder);
        }
        holder.unlock(Duration::ZERO)?;
        Ok(())
    }
}

fn print(what: &str, runs: &Runs<Seen>) {
    let (row, rested) = (format!("{what} in a row us"), format!("{what} rested us"));
    let heading = [
        "",
        "x notify",
        &format!("x {what}"),
        "x rested",
        "median us",
        "p90 us",
        "p99 us",
        "max us",
        &row,
        &rested,
        "hand-overs",
    ];
    let mut table = Table::new(&heading);
    // Between threads there is none.
    let notify = runs.find(NOTIFY);
    for (who, name) in runs.names() {
        let all = runs.of(who);
        table.row([
            name.to_owned(),
            num(
                notify.map_or(f64::NAN, |it| runs.ratio(who, it, Seen::median_us)),
                2,
            ),
            num(runs.median(who, Seen::in_pairs), 2),
            num(runs.median(who, Seen::in_rested_pairs), 2),
            num(runs.median(who, Seen::median_us), 0),
            num(runs.median(who, |it| it.hand_overs.p90_us()), 0),
            num(runs.median(who, Seen::p99_us), 0),
            num(runs.median(who, |it| it.hand_overs.max_us()), 0),
            num(runs.median(who, |it| it.row.median_us()), 0),
            num(runs.median(who, |it| it.rested.median_us()), 0),
            all.iter()
                .map(|it| it.hand_overs.len())
                .sum::<usize>()
                .to_string(),
        ]);
    }
    table.print();
}
