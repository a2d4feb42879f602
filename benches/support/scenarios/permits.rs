//! How well is a semaphore used that fewer want than it has permits, and that more want?
//!
//! Ten permits, five nodes; each worker is a thread with a manager of its own, which takes a permit, stays inside for a
//! millisecond, gives it back, and asks again at once. "In use" is the share of what could be inside: of ten, or of the workers if
//! those are fewer. Rounds are per permit: 1 is the least. The longest is the longest wait for one, and a turn is how long a
//! worker waits if all get permits in turns, with nothing lost in between.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::Result;
use crate::support::ours::Ours;
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Samples, Table, num};

const PERMITS: usize = 10;
const WORKERS: [usize; 2] = [8, 30];
const NAMES: [&str; 2] = ["8 workers", "30 workers"];
const INSIDE: Duration = Duration::from_millis(1);

struct Run {
    inside: Duration,
    elapsed: Duration,
    rounds: u64,
    permits: u64,
    waits: Samples,
}

impl Run {
    fn in_use_percent(&self, workers: usize) -> f64 {
        100.0 * self.inside.as_secs_f64() / self.elapsed.as_secs_f64() / workers.min(PERMITS) as f64
    }

    fn rounds_per_permit(&self) -> f64 {
        self.rounds as f64 / self.permits as f64
    }
}

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let (count, window) = (setting.runs(), Duration::from_secs(setting.size(3, 1)));
    setting.begin(&format!("permits: a semaphore of {PERMITS}, {count} runs of {window:?} each, in turns"));
    let urls = nodes.urls();
    let managers = (0..WORKERS[1]).map(|_| Ours::open(&urls)).collect::<Result<Vec<_>>>()?;
    let mut runs = Runs::new(NAMES);
    for _ in 0..count {
        for (who, workers) in WORKERS.into_iter().enumerate() {
            runs.push(who, one(&managers[..workers], window)?);
        }
    }
    let mut table = Table::new(&["", "in use %", "rounds", "permits/s", "median us", "p99 us", "longest ms"]);
    for (who, name) in runs.names() {
        let workers = WORKERS[who];
        table.row([
            name.to_owned(),
            num(runs.median(who, |it| it.in_use_percent(workers)), 1),
            num(runs.median(who, Run::rounds_per_permit), 2),
            num(runs.median(who, |it| it.permits as f64 / it.elapsed.as_secs_f64()), 0),
            num(runs.median(who, |it| it.waits.median_us()), 0),
            num(runs.median(who, |it| it.waits.p99_us()), 0),
            num(runs.median(who, |it| it.waits.max_us() / 1e3), 1),
        ]);
    }
    table.print();
    let rounds = |who| runs.median(who, Run::rounds_per_permit);
    setting.judge(Target::AtMost(1.3), "permits: rounds per permit, 8 workers", rounds(0), 2);
    setting.judge(Target::AtMost(4.0), "permits: rounds per permit, 30 workers", rounds(1), 2);
    Ok(())
}

/// All workers for as long as the window is open.
fn one(managers: &[Ours], window: Duration) -> Result<Run> {
    let begin = Barrier::new(managers.len());
    let rounds = || managers.iter().map(|it| it.counts().rounds).sum::<u64>();
    let (before, start) = (rounds(), Instant::now());
    let worker = |ours: &Ours| -> Result<Samples> {
        let mut waits = Samples::default();
        begin.wait();
        while start.elapsed() < window {
            let asked = Instant::now();
            let permit = ours.permit("bench:permits", PERMITS)?;
            waits.push(asked.elapsed());
            thread::sleep(INSIDE);
            permit.release()?;
        }
        Ok(waits)
    };
    let mut waits = Samples::default();
    thread::scope(|scope| {
        let workers: Vec<_> =
            managers.iter().map(|it| scope.spawn(|| worker(it).map_err(|it| it.to_string()))).collect();
        for it in workers {
            waits.extend(&it.join().map_err(|_| "a worker panicked")??);
        }
        Result::Ok(())
    })?;
    let permits = waits.len() as u64;
    let inside = INSIDE * u32::try_from(permits)?;
    Ok(Run { inside, elapsed: start.elapsed(), rounds: rounds() - before, permits, waits })
}
