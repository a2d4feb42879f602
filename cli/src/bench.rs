//! `quorlock bench`: measures the cost of locks, to choose servers.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use quorlock::LockManager;
use quorlock::error::NodeCheck;

use crate::exit::{Exit, Failed};
use crate::options::{NodeArgs, duration};
use crate::{nodes, show};

/// The measurements. Each takes the same time.
const PARTS: u32 = 3;

/// The shortest lifetime of fencing counters, which are left on the servers.
const COUNTERS_LIVE: Duration = Duration::from_secs(60);

/// Digits of precision: times are at most 1 % too long.
const DIGITS: u8 = 2;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Measures round trips to each server, and locks with their releases by one thread and by several. \
The servers work at full load, so choose a quiet hour. The locks have new, random names. Their \
fencing counters expire within a minute, or within twice the max-ttl if that is longer. After an \
interruption a lock expires within its ttl. If an access list limits the keys, give their --prefix.

Exit status: 0 measured; 69 no majority of the servers

Examples:
  quorlock bench                          five seconds, eight threads
  quorlock bench --for 1m --threads 64    longer, with more threads")]
pub(crate) struct Bench {
    /// Number of threads in the part with several, 1 to 1000
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=1000)
    )]
    threads: u16,
    /// Time of all measurements
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = duration)]
    time: Duration,
}

/// Times in nanoseconds.
type Times = Histogram<u64>;

pub(crate) fn run(args: &NodeArgs, bench: &Bench) -> Result<ExitCode, Failed> {
    let mut settings = nodes::without_locks(args)?;
    let counters_live = COUNTERS_LIVE.max(settings.max_ttl.saturating_mul(2));
    settings.builder = settings.builder.fencing_ttl(Some(counters_live));
    let locks = settings.build()?;
    let id = fastrand::u64(..);
    let name = |thread| format!("quorlock-bench-{id:016x}-{thread}");
    // Connects before the measurement, and fails at once without a majority.
    locks.mutex(name(0)).try_lock()?.release()?;
    let time = show::time(bench.time);
    show::warn(&format!("full load for the servers for {time}"));

    let part = bench.time / PARTS;
    let mut rows = Vec::new();
    for (check, times) in round_trips(&locks, part) {
        let failure = check.failure.map(|it| format!(": {it}"));
        let what = format!("round trip to {} ({})", check.node, check.address);
        rows.push(row(what + &failure.unwrap_or_default(), None, &times));
    }
    for threads in [1, bench.threads] {
        let names: Vec<_> = (0..threads).map(name).collect();
        let began = now();
        let times = pairs(&locks, &names, part)?;
        let what = format!("lock and release, threads: {threads}");
        rows.push(row(what, Some(began.elapsed()), &times));
    }
    let header = [
        "WHAT",
        "TIMES",
        "PER SECOND",
        "MEDIAN",
        "90 %",
        "99 %",
        "LONGEST",
    ];
    show::say(&show::table(&header, rows))?;
    Ok(ExitCode::SUCCESS)
}

/// `total`: the time of all of them together.
fn row(what: String, total: Option<Duration>, times: &Times) -> Vec<String> {
    // Far below 2^53.
    let per_second = total.map(|it| format!("{:.0}", times.len() as f64 / it.as_secs_f64()));
    let mut row = vec![
        what,
        times.len().to_string(),
        per_second.unwrap_or_default(),
    ];
    for percentage in [50.0, 90.0, 99.0, 100.0] {
        let time = Duration::from_nanos(times.value_at_percentile(percentage));
        row.push(show::time(time));
    }
    row
}

/// The round trips to each server, beside its last check.
fn round_trips(locks: &LockManager, time: Duration) -> Vec<(NodeCheck, Times)> {
    let began = now();
    let checks = locks.check_nodes().into_iter();
    let mut nodes: Vec<_> = checks.map(|check| (check, no_times())).collect();
    while began.elapsed() < time {
        for ((last, times), check) in nodes.iter_mut().zip(locks.check_nodes()) {
            if let Some(round_trip) = check.round_trip {
                add(times, round_trip);
            }
            *last = check;
        }
    }
    nodes
}

/// Locks and releases, each name in a thread of its own.
fn pairs(locks: &LockManager, names: &[String], time: Duration) -> Result<Times, Failed> {
    let began = now();
    let of_one = |name: &String| -> Result<Times, Failed> {
        let (lock, mut times) = (locks.mutex(name), no_times());
        while times.is_empty() || began.elapsed() < time {
            let began = now();
            lock.lock()?.release()?;
            add(&mut times, began.elapsed());
        }
        Ok(times)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = names
            .iter()
            .map(|name| thread::Builder::new().spawn_scoped(scope, move || of_one(name)))
            .collect();
        let mut all = no_times();
        for thread in threads {
            let times = thread?.join();
            all += times.map_err(|_| Failed::new(Exit::INTERNAL, "a thread has ended"))??;
        }
        Ok(all)
    })
}

fn no_times() -> Times {
    Times::new(DIGITS).expect("a valid number of digits")
}

fn add(times: &mut Times, time: Duration) {
    // Fails where 64 bits of a time need more memory than there are addresses.
    let _ = times.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

#[expect(clippy::disallowed_methods, reason = "a program that measures")]
fn now() -> Instant {
    Instant::now()
}
