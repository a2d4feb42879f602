//! What does it cost to wait for a lock that is not released?
//!
//! A thousand threads of one manager wait: first all for one lock, then for a lock each. A manager in another process
//! holds them all along, and renews them: its commands are counted apart, by itself. What is left is the price of
//! waiting, in commands for each node and in processor time of the process that waits. At the end all threads are
//! cancelled, and each has to come back saying so.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::Result;
use crate::support::ours::Ours;
use crate::support::peer::Peer;
use crate::support::servers::{Calls, Nodes};
use crate::support::setting::Setting;
use crate::support::stats::{process_cpu, resident_kib};

const THREADS: usize = 1000;
/// Until every waiter has been refused once: before that, nothing is idle.
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) fn run(setting: &Setting) -> Result {
    let window = Duration::from_secs(setting.size(60, 5));
    let nodes = Nodes::start()?;
    let mut holder = Peer::ours(&nodes.urls())?;
    let ours = Ours::open(&nodes.urls())?;
    holder.warm_up()?;
    for locks in [1, THREADS] {
        let s = if locks == 1 { "" } else { "s" };
        setting.begin(&format!(
            "idle: {THREADS} threads wait for {locks} held lock{s}, {window:?}"
        ));
        wait(&nodes, &ours, &mut holder, locks, window)?;
    }
    Ok(())
}

fn wait(nodes: &Nodes, ours: &Ours, holder: &mut Peer, locks: usize, window: Duration) -> Result {
    let name = format!("bench:idle:{locks}");
    holder.hold(locks, &name)?;
    let empty_kib = resident_kib()?;
    let waiters = ours.waiters(THREADS, |i| format!("{name}:{}", i % locks))?;
    thread::sleep(SETTLE);

    let (calls, own, others) = (nodes.calls()?, ours.counts().commands, holder.commands()?);
    let (start, cpu) = (Instant::now(), process_cpu());
    thread::sleep(window);
    let (elapsed, cpu) = (
        start.elapsed().as_secs_f64(),
        process_cpu().saturating_sub(cpu),
    );
    let (own, others) = (ours.counts().commands - own, holder.commands()? - others);
    let calls = Calls::since(&nodes.calls()?, &calls);

    let kib = resident_kib()?.saturating_sub(empty_kib);
    let start = Instant::now();
    waiters.cancel()?;
    let out = start.elapsed().as_secs_f64();

    let of_nodes = calls.len() as f64;
    let sum = |number: fn(&Calls) -> u64| calls.iter().map(number).sum::<u64>() as f64;
    let most = calls.iter().map(|it| it.scripts).max().unwrap_or(0) as f64;
    println!(
        "  commands of the waiters: {:.2} per second on each node",
        own as f64 / elapsed / of_nodes
    );
    println!(
        "  commands of the holder, which renews: {:.2} per second on each node",
        others as f64 / elapsed / of_nodes
    );
    println!(
        "  counted by the nodes: {:.2} scripts per second on each, {:.2} on the busiest; {:.2} commands, those in \
         scripts included",
        sum(|it| it.scripts) / elapsed / of_nodes,
        most / elapsed,
        sum(|it| it.all) / elapsed / of_nodes,
    );
    println!(
        "  processor time of the waiting process: {:.2} % of a core",
        cpu.as_secs_f64() / elapsed * 100.0
    );
    println!("  memory: {kib} KiB more than before they waited");
    println!(
        "  cancelled: all {THREADS} threads were out {:.0} ms later",
        out * 1e3
    );
    let valid = holder.release()?;
    println!("  the holder still held {valid} of {locks}");
    if valid != locks {
        Err("a lock was lost while others waited for it".into())
    } else {
        Ok(())
    }
}
