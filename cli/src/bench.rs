//! `quorlock bench`: measures the cost of locks.

mod measure;
mod report;
mod times;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use quorlock::inspection::{StoredKey, StoredLock};
use quorlock::{CancelHandle, LockManager};
use serde_json::{Value, json};

use crate::bench::measure::{Part, now};
use crate::bench::report::Measured;
use crate::exit::{Exit, Failed};
use crate::options::{NodeArgs, duration};
use crate::{nodes, show};

/// The measurements. Each takes the same time.
const PARTS: u32 = 4;

/// The shortest lifetime of counters, for those that cannot be deleted.
const COUNTERS_LIVE: Duration = Duration::from_secs(60);

/// The last release is gone after a round trip.
const CLEAN_UP_FOR: Duration = Duration::from_secs(5);
const CLEAN_UP_LOOK: Duration = Duration::from_millis(10);

const REDRAWN: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Measures, each for a quarter of the time:
  - the round trip to each server
  - a lock and its release, by one thread
  - the same by several threads, each with its own lock
  - the hand-over of a lock to a waiting client

The servers work at full load, so choose a quiet hour. bench takes only locks with new, random names and prints these names \
first. At the end, also after a signal, it deletes their keys. If it is killed or a server is down, the keys expire within a \
minute, or within twice the max-ttl if that is longer. If an access list limits the keys, give their --prefix.

Exit status: 0 measured; 69 no majority of the servers; 128+N signal N ended the measurement

Examples:
  quorlock bench                          five seconds, eight threads
  quorlock bench --for 1m --threads 64    longer, with more threads
  quorlock bench --for 1s --json          for programs")]
pub(crate) struct Bench {
    /// Number of threads in the part with several, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: u16,
    /// Time of all measurements
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = duration)]
    time: Duration,
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &NodeArgs, bench: &Bench) -> Result<ExitCode, Failed> {
    let Bench { threads, time, .. } = *bench;
    let mut settings = nodes::without_locks(args)?;
    let life = COUNTERS_LIVE.max(settings.max_ttl.saturating_mul(2));
    settings.builder = settings.builder.clone().fencing_ttl(Some(life));
    let clients = [settings.build()?, settings.build()?];
    let (stop, signal) = (CancelHandle::new(), Arc::new(AtomicU8::new(0)));
    listen(&stop, &signal)?;

    let plan = Plan {
        id: fastrand::u64(..),
        threads,
        time,
        life,
    };
    if bench.json {
        show::say(&plan.object().to_string())?;
    } else {
        show::warn(&plan.text());
    }
    let names = plan.names();
    let measured = measure(&clients, &names, time, &stop);
    let left = clean_up(&clients[0], &names)?;
    let not_clean = (!left.is_empty()).then(|| {
        format!(
            "keys may be left on {}: they expire within {}",
            left.join(", "),
            show::time(life)
        )
    });
    let measured = measured.map_err(|failed| match signal.load(Ordering::SeqCst) {
        0 => failed,
        number => Failed::new(Exit::signal(number), "a signal ended the measurement"),
    });
    match measured {
        Ok(measured) if bench.json => show::say(&measured.object(&left).to_string())?,
        Ok(measured) => {
            not_clean.iter().for_each(|it| show::warn(it));
            show::say(&measured.text())?;
        }
        Err(mut failed) => {
            if let Some(not_clean) = not_clean {
                failed.reason += &format!("; {not_clean}");
            }
            return Err(failed);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The work for the servers.
struct Plan {
    id: u64,
    threads: u16,
    time: Duration,
    life: Duration,
}

impl Plan {
    /// The names of the locks, one for each thread.
    fn names(&self) -> Vec<String> {
        (1..=self.threads).map(|it| self.name(it)).collect()
    }

    fn name(&self, number: u16) -> String {
        format!("quorlock-bench-{:016x}-{number}", self.id)
    }

    fn text(&self) -> String {
        let (first, threads) = (self.name(1), self.threads);
        let (each, life) = (show::time(self.time / PARTS), show::time(self.life));
        format!(
            "\
full load for the servers, {each} for each of:
  round trips to each server
  {first}, locked and released by one thread: two commands for each server
  the same by {threads} threads, each with its own lock: names end with -1 to -{threads}
  hand-overs of the first lock between two clients
No other name is touched. The keys are deleted at the end, also after a signal; otherwise they expire within {life}."
        )
    }

    fn object(&self) -> Value {
        json!({
            "quorlock": 1, "event": "begins", "names": format!("quorlock-bench-{:016x}-*", self.id), "seconds": self.time.as_secs_f64(),
            "expire_within": self.life.as_secs_f64(),
        })
    }
}

fn measure(
    clients: &[LockManager; 2],
    names: &[String],
    time: Duration,
    stop: &CancelHandle,
) -> Result<Measured, Failed> {
    let [locks, other] = clients;
    let (first, rest) = (
        names.first().map_or("", String::as_str),
        names.get(..1).unwrap_or_default(),
    );
    // Connects before the measurement, and fails at once without a majority.
    for client in clients {
        client
            .mutex(first)
            .cancelled_by(stop)
            .try_lock()?
            .release()?;
    }
    let bar = progress();
    let part = |what: &'static str| {
        bar.set_message(what);
        bar.inc(1);
        Part::begin(stop, time / PARTS)
    };
    let nodes = measure::round_trips(locks, part("round trips"));
    let single = measure::pairs(locks, rest, part("one thread"))?;
    let several = measure::pairs(locks, names, part("several threads"))?;
    let pair = single.times.percentile(50.0).unwrap_or_default();
    let hand_over = measure::hand_over([locks, other], first, pair, part("hand-over"))?;
    Ok(Measured {
        nodes,
        single,
        several,
        threads: names.len(),
        hand_over,
    })
}

/// Deletes the keys of these names. Returns the servers that may have some left.
fn clean_up(locks: &LockManager, names: &[String]) -> Result<Vec<String>, Failed> {
    let is_clean =
        |it: &StoredLock| it.key == StoredKey::Missing && it.counter.is_none() && it.waiting == 0;
    let until = now() + CLEAN_UP_FOR;
    let mut names: Vec<_> = names.iter().collect();
    loop {
        let (mut dirty, mut left) = (Vec::new(), BTreeSet::new());
        for name in names {
            let seen = locks.mutex(name).inspect()?;
            let rows = seen.nodes().iter();
            let mut unclean = rows.filter(|it| !it.stored.as_ref().is_ok_and(is_clean));
            left.extend(
                unclean
                    .clone()
                    .map(|it| format!("{} ({})", it.node, it.address)),
            );
            if unclean.all(|it| it.stored.is_err()) {
                continue;
            }
            // RACE: a slow server may get the last release later, and recreate a key. So all names are checked once more.
            locks.admin().release(&seen)?;
            locks.admin().forget(&seen)?;
            dirty.push(name);
        }
        if dirty.is_empty() || until < now() {
            return Ok(left.into_iter().collect());
        }
        names = dirty;
        thread::park_timeout(CLEAN_UP_LOOK);
    }
}

/// On stderr, if that is a terminal. Cleared when it is dropped.
fn progress() -> ProgressBar {
    let bar = ProgressBar::new(PARTS.into());
    if let Ok(style) =
        ProgressStyle::with_template("{msg:16} {wide_bar} {elapsed} part {pos} of {len}")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(REDRAWN);
    bar
}

/// From now on signals end the measurement, and its keys are deleted.
#[cfg(unix)]
fn listen(stop: &CancelHandle, signal: &Arc<AtomicU8>) -> Result<(), Failed> {
    let (stop, signal) = (stop.clone(), Arc::clone(signal));
    let tell = move |number, _| {
        signal.store(u8::try_from(number).unwrap_or(0), Ordering::SeqCst);
        stop.cancel();
    };
    crate::signals::on_each(crate::signals::ENDING, tell)?;
    Ok(())
}

/// Without signals: after a kill the keys expire.
#[cfg(not(unix))]
fn listen(_: &CancelHandle, _: &Arc<AtomicU8>) -> Result<(), Failed> {
    Ok(())
}
