//! What becomes of many more threads than the servers can serve at once?
//!
//! A key each, as in `threads`, and up to thousands of them: in one process, in several, and with servers that run a
//! tenth of the time. Every thread should get its turn: nothing fails, and the pairs per second stay near their best.
//!
//! The windows of the contenders alternate. Of the peer there is one process, with tasks instead of threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::Result;
use crate::support::contenders::Contender;
use crate::support::peer::Peer;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Table, Window, num};

const PEER: &str = "rslock-mt";
/// How many threads each time, in all processes together.
const THREADS: [usize; 5] = [10, 64, 100, 1000, 4000];
/// At as many threads as are at it together where there are several processes.
const TOGETHER: usize = 1000;
const PROCESSES: usize = 4;
/// Servers run this long, and stand still for nine times that.
const RUN: Duration = Duration::from_millis(1);
/// Of the best number of pairs per second, percent.
const SHARE_MIN: f64 = 50.0;

pub(crate) fn run(setting: &Setting) -> Result {
    let window = Duration::from_millis(setting.size(4000, 1000));
    let nodes = Nodes::start()?;
    let mut all = Contender::ours_and(&[PEER], &nodes)?;
    for contender in &mut all {
        contender.pairs(50)?; // warm-up
    }
    let mut processes = (0..PROCESSES)
        .map(|_| Peer::ours(&nodes.urls()))
        .collect::<std::io::Result<Vec<_>>>()?;
    for process in &mut processes {
        process.warm_up()?;
    }
    for slow in [false, true] {
        setting.begin(&format!(
            "overload: a key each{}",
            if slow {
                ", servers that run a tenth of the time"
            } else {
                ""
            }
        ));
        let mut table = Table::new(&[
            "",
            "threads",
            "pairs/s",
            "% of best",
            "p50 ms",
            "p99 ms",
            "failed",
        ]);
        let mut seen: Vec<Vec<f64>> = all.iter().map(|_| Vec::new()).collect();
        let mut failed = 0;
        for threads in THREADS {
            for (contender, seen) in all.iter_mut().zip(&mut seen) {
                let result = perhaps_slow(&nodes, slow, || contender.threads(threads, window))?;
                let best = add(seen, result.pairs_per_s());
                table.row(row(contender.name(), threads, &result, best));
                if matches!(contender, Contender::Ours(_)) {
                    failed += result.failed;
                }
            }
        }
        let several = perhaps_slow(&nodes, slow, || {
            together(&mut processes, TOGETHER / PROCESSES, window)
        })?;
        for result in &several {
            failed += result.failed;
            table.row(row(
                "quorlock, one of 4 processes",
                TOGETHER / PROCESSES,
                result,
                f64::NAN,
            ));
        }
        table.print();
        let ours = &seen[0];
        let (best, least) = ours.iter().fold((0.0_f64, f64::MAX), |(best, least), it| {
            (best.max(*it), least.min(*it))
        });
        // Few threads cannot keep slow servers busy.
        let least = if slow {
            ours[THREADS.len() - 1].min(ours[THREADS.len() - 2])
        } else {
            least
        };
        setting.judge(
            Target::AtLeast(SHARE_MIN),
            "quorlock: pairs per second, % of the best",
            least / best * 100.0,
            0,
        );
        setting.judge(Target::AtMost(0.0), "quorlock: failed", failed as f64, 0);
    }
    Ok(())
}

/// Notes a number of pairs per second; the share of the best so far, in percent.
fn add(seen: &mut Vec<f64>, rate: f64) -> f64 {
    seen.push(rate);
    rate / seen.iter().copied().fold(0.0, f64::max) * 100.0
}

fn row(name: &str, threads: usize, result: &Window, share: f64) -> [String; 7] {
    [
        name.to_owned(),
        threads.to_string(),
        num(result.pairs_per_s(), 0),
        num(share, 0),
        num(result.p50_us / 1e3, 1),
        num(result.p99_us / 1e3, 1),
        result.failed.to_string(),
    ]
}

/// Runs threads in all processes at the same time.
fn together(processes: &mut [Peer], threads: usize, window: Duration) -> Result<Vec<Window>> {
    thread::scope(|scope| {
        let begin = |(number, process): (usize, _)| {
            let process: &mut Peer = process;
            scope.spawn(move || {
                process.threads(threads, window, &format!("bench:overload:{number}:t"))
            })
        };
        let running: Vec<_> = processes.iter_mut().enumerate().map(begin).collect();
        let join = |it: thread::ScopedJoinHandle<'_, std::io::Result<Window>>| match it.join() {
            Ok(window) => Ok(window?),
            Err(_) => Err("a thread of the bench panicked".into()),
        };
        running.into_iter().map(join).collect()
    })
}

/// Does the `work` while the servers run a tenth of the time, if they are to be slow.
fn perhaps_slow<T>(nodes: &Nodes, slow: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
    if !slow {
        return work();
    }
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let slow_down = || {
            while !is_done.load(Ordering::SeqCst) && nodes.pause_all(RUN * 9).is_ok() {
                thread::sleep(RUN);
            }
        };
        scope.spawn(slow_down);
        let result = work();
        is_done.store(true, Ordering::SeqCst);
        result
    })
}
