//! What does it cost to hold very many locks?
//!
//! They are acquired once and renewed from then on. None may be lost, and neither processor time nor memory may
//! grow while nothing happens. The other clients have no renewal to compare with.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::ours::Ours;
use crate::support::servers::Nodes;
use crate::support::stats::{process_cpu, resident_kib};
use crate::support::{Result, Setting};

pub(crate) fn run(setting: &Setting) -> Result {
    let count = setting.size(10_000, 1_000);
    let seconds = setting.size(60, 15);
    println!("\nheld: {count} locks of a ttl of 10 s, renewed for {seconds} s");
    let nodes = Nodes::start()?;
    let ours = Ours::open(&nodes.urls())?;
    let empty_kib = resident_kib()?;

    let start = Instant::now();
    let held = ours.hold(count, "bench:held")?;
    println!("  acquired in {:.2} s, one after the other", start.elapsed().as_secs_f64());

    let full_kib = resident_kib()?;
    println!("  memory: {empty_kib} KiB before, {full_kib} KiB with all of them");
    let (commands, cpu, start) = (nodes.commands()?, process_cpu(), Instant::now());
    thread::sleep(Duration::from_secs(seconds));
    let elapsed = start.elapsed().as_secs_f64();
    let cpu_ms = process_cpu().saturating_sub(cpu).as_secs_f64() * 1e3;
    let commands = nodes.commands()?.saturating_sub(commands);
    println!("  memory: {:+} KiB in {elapsed:.0} s", resident_kib()?.cast_signed() - full_kib.cast_signed());
    println!("  processor time: {:.1} ms per second", cpu_ms / elapsed);
    println!("  commands: {:.0} per second on each node", commands as f64 / elapsed / 5.0);
    println!("  locks lost: {}; still valid: {} of {count}", ours.lost(), Ours::valid(&held));

    let start = Instant::now();
    let mut unconfirmed = 0;
    for guard in held {
        unconfirmed += usize::from(guard.release().is_err());
    }
    println!("  released in {:.2} s, {unconfirmed} unconfirmed", start.elapsed().as_secs_f64());
    Ok(())
}
