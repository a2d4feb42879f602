//! What the metrics cost: pairs of an acquisition and its release, in turns, on one thread and three servers.
//!
//! ```text
//! cargo bench --package prometheus-example
//! ```
//!
//! Processor time of this process per pair, of its own threads and of those of the managers: the median of all blocks.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use devnodes::Servers;
use prometheus_example::install;
use quorlock::LockManager;
use quorlock::observer::MetricsObserver;
use rustix::time::{ClockId, clock_gettime};

/// Blocks of each manager.
const BLOCKS: usize = 200;
/// Pairs in a block.
const PAIRS: u32 = 50;

fn main() -> Result<(), Box<dyn Error>> {
    if !std::env::args().any(|it| it == "--bench") {
        // `cargo test --all-targets` runs benches too.
        return Ok(());
    }
    let servers = Servers::start(3)?;
    let _metrics = install()?;
    let builder = || LockManager::builder(servers.urls()).quarantine(false);
    let managers = [
        ("nobody listens", builder().build()?),
        (
            "an observer that does nothing",
            builder().observer(Arc::new(|_: &_| ())).build()?,
        ),
        (
            "metrics",
            builder()
                .observer(Arc::new(MetricsObserver::new()))
                .build()?,
        ),
    ];
    let mut took: [Vec<Duration>; 3] = Default::default();
    for block in 0..BLOCKS {
        for turn in 0..managers.len() {
            let who = (block + turn) % managers.len();
            let mutex = managers[who].1.mutex("bench").class("bench");
            let before = processor_time();
            for _ in 0..PAIRS {
                mutex.lock()?.release()?;
            }
            took[who].push((processor_time() - before) / PAIRS);
        }
    }
    for ((name, _), took) in managers.iter().zip(&mut took) {
        took.sort_unstable();
        println!("{name}: {:?} of processor time per pair", took[BLOCKS / 2]);
    }
    Ok(())
}

/// Of all threads of this process.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}
