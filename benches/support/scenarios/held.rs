//! What does it cost to hold very many locks?
//!
//! They are acquired once and renewed from then on, every third of their ttl. None may be lost, and neither processor
//! time nor memory may grow while nothing happens. The other clients have no renewal to compare with.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::Result;
use crate::support::ours::Ours;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{median, num, process_cpu, resident_kib};

/// In a quick run too: what a lock costs depends on how many are due together.
const COUNT: usize = 10_000;
/// Of a core.
const SHARE_MAX: f64 = 0.12;

pub(crate) fn run(setting: &Setting) -> Result {
    let (windows, window) = (setting.runs(), Duration::from_secs(setting.size(20, 10)));
    setting.begin(&format!(
        "held: {COUNT} locks of a ttl of 10 s, renewed in {windows} windows of {window:?}"
    ));
    let nodes = Nodes::start()?;
    let ours = Ours::open(&nodes.urls())?;
    let empty_kib = resident_kib()?;

    let start = Instant::now();
    let held = ours.hold(COUNT, "bench:held")?;
    println!(
        "  acquired in {:.2} s, one after the other",
        start.elapsed().as_secs_f64()
    );

    let full_kib = resident_kib()?;
    let (mut client, mut servers, commands, start) =
        (Vec::new(), Vec::new(), nodes.commands()?, Instant::now());
    for _ in 0..windows {
        let (start, cpu) = (Instant::now(), process_cpu());
        let ((), nodes) = nodes.metered(|| {
            thread::sleep(window);
            Ok(())
        })?;
        let elapsed = start.elapsed().as_secs_f64();
        client.push(process_cpu().saturating_sub(cpu).as_secs_f64() / elapsed);
        servers.push(nodes.as_secs_f64() / elapsed);
    }
    let elapsed = start.elapsed().as_secs_f64();
    let commands = nodes.commands()?.saturating_sub(commands);
    let share = median(&client);
    let each = |share: f64| share * 1e6 / COUNT as f64;
    println!(
        "  client: {} of a core, {} us per second and lock",
        num(share, 3),
        num(each(share), 2)
    );
    println!(
        "  servers: {} of a core, all five, {} us per second and lock",
        num(median(&servers), 3),
        num(each(median(&servers)), 2)
    );
    println!(
        "  commands, those in scripts included: {:.0} per second on each node",
        commands as f64 / elapsed / 5.0
    );
    println!("  memory: {empty_kib} KiB before, {full_kib} KiB with all of them");
    println!(
        "  memory: {:+} KiB in {elapsed:.0} s",
        resident_kib()?.cast_signed() - full_kib.cast_signed()
    );
    println!(
        "  locks lost: {}; still valid: {} of {COUNT}",
        ours.lost(),
        Ours::valid(&held)
    );
    setting.judge(
        Target::AtMost(SHARE_MAX),
        "client's share of a core",
        share,
        3,
    );

    let start = Instant::now();
    let mut unconfirmed = 0;
    for guard in held {
        unconfirmed += usize::from(guard.release().is_err());
    }
    println!(
        "  released in {:.2} s, {unconfirmed} unconfirmed",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
