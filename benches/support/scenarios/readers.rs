//! What do many readers get of a lock, beside a writer and beside each other?
//!
//! *A loop*: eight readers and one writer, each of which takes the lock, stays inside for a millisecond, releases, and asks again
//! at once; as threads of one manager, and with a manager each. The same nine on one mutex are beside them, in turns. "Held" is
//! the share of time in which at least one reader was inside, or the writer; the waits are the longest.
//!
//! *Readers that overlap*: 64 threads that read one name, try once and release at once, beside 64 that have a mutex each, and
//! 64 that read a name each.

use std::time::Duration;

use crate::support::Result;
use crate::support::loops::{Turns, take_turns};
use crate::support::ours::Ours;
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Table, Window, num};

const READERS: usize = 8;
const INSIDE: Duration = Duration::from_millis(1);
const OVERLAPPING: usize = 64;

/// Who takes part in the loop: the mutex comes before what is compared with it.
const LOOPS: [&str; 4] = [
    "mutex",
    "readers and a writer",
    "mutex, managers",
    "readers and a writer, managers",
];

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let urls = nodes.urls();
    let managers = (0..=READERS)
        .map(|_| Ours::open(&urls))
        .collect::<Result<Vec<_>>>()?;
    in_a_loop(setting, &managers)?;
    that_overlap(setting, &nodes, &managers[0])
}

fn is_reader(worker: usize) -> bool {
    worker < READERS
}

fn is_writer(worker: usize) -> bool {
    !is_reader(worker)
}

fn in_a_loop(setting: &Setting, managers: &[Ours]) -> Result {
    let (count, window) = (setting.runs(), Duration::from_secs(setting.size(3, 1)));
    setting.begin(&format!(
        "readers: {READERS} and a writer in a loop, {INSIDE:?} inside, {count} runs of {window:?} each"
    ));
    let mut runs = Runs::new(LOOPS);
    for _ in 0..count {
        for who in 0..LOOPS.len() {
            let turns = take_turns(READERS + 1, window, INSIDE, |worker, inside| {
                let ours = if who < 2 {
                    &managers[0]
                } else {
                    &managers[worker]
                };
                match who % 2 {
                    0 => ours.mutex_turn("bench:loop:mutex", inside),
                    _ if is_reader(worker) => ours.read_turn("bench:loop:rwlock", inside),
                    _ => ours.write_turn("bench:loop:rwlock", inside),
                }
            })?;
            runs.push(who, turns);
        }
    }
    let heading = [
        "",
        "readers held %",
        "writer held %",
        "reads/s",
        "x mutex",
        "writes/s",
        "x mutex",
        "longest read ms",
        "x mutex",
        "longest write ms",
        "x mutex",
    ];
    let reads = |it: &Turns| it.per_second(is_reader);
    let writes = |it: &Turns| it.per_second(is_writer);
    let longest_read = |it: &Turns| it.waits(is_reader).max_us() / 1e3;
    let longest_write = |it: &Turns| it.waits(is_writer).max_us() / 1e3;
    let mut table = Table::new(&heading);
    for (who, name) in runs.names() {
        let mutex = who / 2 * 2;
        table.row([
            name.to_owned(),
            num(runs.median(who, |it| it.held_percent(is_reader)), 1),
            num(runs.median(who, |it| it.held_percent(is_writer)), 1),
            num(runs.median(who, reads), 0),
            num(runs.ratio(who, mutex, reads), 2),
            num(runs.median(who, writes), 0),
            num(runs.ratio(who, mutex, writes), 2),
            num(runs.median(who, longest_read), 1),
            num(runs.ratio(who, mutex, longest_read), 2),
            num(runs.median(who, longest_write), 1),
            num(runs.ratio(who, mutex, longest_write), 2),
        ]);
    }
    table.print();
    for (mutex, who) in [(0, 1), (2, 3)] {
        // Readers go in together, so everybody's turn comes sooner than if nine took turns.
        setting.judge(
            Target::AtLeast(2.0),
            &format!("{}: reads, x mutex", LOOPS[who]),
            runs.ratio(who, mutex, reads),
            2,
        );
        setting.judge(
            Target::AtLeast(1.0),
            &format!("{}: writes, x mutex", LOOPS[who]),
            runs.ratio(who, mutex, writes),
            2,
        );
    }
    Ok(())
}

fn that_overlap(setting: &Setting, nodes: &Nodes, ours: &Ours) -> Result {
    let (count, window) = (
        setting.runs(),
        Duration::from_millis(setting.size(1500, 500)),
    );
    setting.begin(&format!(
        "readers: {OVERLAPPING} that overlap, {count} runs of {window:?} each"
    ));
    let names = ["mutex, a key each", "read, one key", "read, a key each"];
    let one = |who: usize, window| match who {
        0 => ours.threads(OVERLAPPING, window, "bench:overlap:mutex"),
        1 => ours.threads_that(OVERLAPPING, window, |_| {
            ours.read_pair("bench:overlap:read")
        }),
        _ => ours.threads_that(OVERLAPPING, window, |i| {
            ours.read_pair(&format!("bench:overlap:read:{i}"))
        }),
    };
    for who in 0..names.len() {
        one(who, window / 10)?;
    }
    let mut runs = Runs::new(names);
    for _ in 0..count {
        for who in 0..names.len() {
            runs.push(who, nodes.metered(|| Ok(one(who, window)?))?);
        }
    }
    let rate = |it: &(Window, Duration)| it.0.pairs_per_s();
    let per_pair =
        |cpu: Duration, it: &(Window, Duration)| cpu.as_secs_f64() * 1e6 / it.0.ok as f64;
    let client = |it: &(Window, Duration)| per_pair(it.0.cpu, it);
    let servers = |it: &(Window, Duration)| per_pair(it.1, it);
    let mut table = Table::new(&[
        "",
        "pairs/s",
        "x mutex",
        "client us",
        "x mutex",
        "servers us",
        "x mutex",
        "p50 us",
        "p99 us",
        "failed",
    ]);
    for (who, name) in runs.names() {
        table.row([
            name.to_owned(),
            num(runs.median(who, rate), 0),
            num(runs.ratio(who, 0, rate), 2),
            num(runs.median(who, client), 1),
            num(runs.ratio(who, 0, client), 2),
            num(runs.median(who, servers), 1),
            num(runs.ratio(who, 0, servers), 2),
            num(runs.median(who, |it| it.0.p50_us), 0),
            num(runs.median(who, |it| it.0.p99_us), 0),
            runs.of(who)
                .iter()
                .map(|it| it.0.failed)
                .sum::<usize>()
                .to_string(),
        ]);
    }
    table.print();
    setting.judge(
        Target::AtLeast(0.5),
        "64 readers that overlap: pairs per second, x mutex",
        runs.ratio(1, 0, rate),
        2,
    );
    Ok(())
}
