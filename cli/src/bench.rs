//! `quorlock bench`: what locks cost on the user's own servers.

mod measure;
mod report;
mod times;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use quorlock::inspection::{StoredKey, StoredLock};
use quorlock::{CancelHandle, LockManager};
use serde_json::{Value, json};

use crate::bench::measure::{Ended, Part, now};
use crate::bench::report::Measured;
use crate::exit::{Exit, Failed};
use crate::options::{NodeArgs, duration, switch};
use crate::{nodes, show};

const THREADS: u16 = 8;

const TIME: Duration = Duration::from_secs(5);

/// Each has the same part of the time.
const PARTS: u32 = 4;

/// Counters that cannot be deleted go by themselves after this: it is the shortest that there is.
const COUNTERS_LIVE: Duration = Duration::from_secs(60);

/// What was left by the last release is gone after a round trip, and so is a place kept for a client that has gone.
const CLEAN_UP_FOR: Duration = Duration::from_secs(5);
const CLEAN_UP_LOOK: Duration = Duration::from_millis(10);

const REDRAWN: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Measures, each for a fourth of the time: how long each server takes to answer; how often a lock that nobody else wants can be \
taken and given back, by one thread and by several, of which each has a lock of its own; and how long it takes until a waiting \
client has a lock that another one releases.

It takes only locks whose names it has just made up, and says them before it begins. The servers have as much to do as they can \
answer, so others will notice: choose the hour. At the end it deletes what is left of these names, also after a signal. If it is \
killed, or cannot reach a server any more, its keys expire by themselves within a minute, or twice the ttl if that is longer. \
Where an access list allows some keys only, give the --prefix of these.

Ends with 0 if all was measured, 69 if no majority of the servers can be asked, 128 and the number of a signal that ended it.

Examples:
  quorlock bench                          five seconds, eight threads
  quorlock bench --for 1m --threads 64    longer, with more threads
  quorlock bench --for 1s --json          for programs: see the page on the command")]
pub(crate) struct Bench {
    /// How many threads lock at once, in the part with several: 1 to 1000 [default: 8]
    #[arg(long, value_name = "N", env = "QUORLOCK_THREADS", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) threads: Option<u16>,
    /// Takes so long in all [default: 5s]
    #[arg(long = "for", value_name = "TIME", env = "QUORLOCK_FOR", value_parser = duration)]
    pub(crate) time: Option<Duration>,
    /// Says it in JSON
    #[arg(long, env = "QUORLOCK_JSON", value_parser = switch())]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &NodeArgs, bench: &Bench) -> Result<ExitCode, Failed> {
    let (threads, time) = (bench.threads.unwrap_or(THREADS), bench.time.unwrap_or(TIME));
    let settings = nodes::without_locks(args)?;
    let life = COUNTERS_LIVE.max(settings.max_ttl.0.saturating_mul(2));
    let builder = settings.builder.fencing_ttl(Some(life));
    let clients = [builder.clone().build()?, builder.build()?];
    let (stop, signal) = (CancelHandle::new(), Arc::new(AtomicU8::new(0)));
    listen(&stop, &signal)?;

    let plan = Plan { id: fastrand::u64(..), threads, time, life };
    if bench.json {
        show::say(&plan.object().to_string())?;
    } else {
        show::warn(&plan.text());
    }
    let names = plan.names();
    let measured = measure(&clients, &names, time, &stop);
    let left = clean_up(&clients[0], &names)?;
    let not_clean = || format!("something may be left on {}: it expires within {}", left.join(", "), show::time(life));
    match measured {
        Ok(measured) => {
            if !left.is_empty() && !bench.json {
                show::warn(&not_clean());
            }
            show::say(&if bench.json { measured.object(&left).to_string() } else { measured.text() })?;
            Ok(ExitCode::SUCCESS)
        }
        Err(ended) => {
            let failed = match ended {
                Ended::Failed(failed) => failed,
                Ended::Cancelled => {
                    let number = signal.load(Ordering::SeqCst);
                    Failed::new(Exit::signal(number), "a signal ended it before all was measured")
                }
            };
            Err(if left.is_empty() { failed } else { failed.and(not_clean()) })
        }
    }
}

/// What is going to happen to the servers.
struct Plan {
    id: u64,
    threads: u16,
    time: Duration,
    life: Duration,
}

impl Plan {
    /// Of the locks: one for each thread.
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
this gives the servers as much to do as they can answer, each of these for {each}:
  asks each of them for its time, one question after another
  takes {first} and gives it back, from one thread: two commands for each server, each time
  the same from {threads} threads, each with a lock of its own: names that end with -1 to -{threads}
  hands the first of these locks to and fro between two clients
No other name is touched. At the end these are deleted, also after a signal; if that fails they expire within {life}."
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
) -> Result<Measured, Ended> {
    let [locks, other] = clients;
    let (first, rest) = (names.first().map_or("", String::as_str), names.get(..1).unwrap_or_default());
    // Connecting is no part of what is measured; and who cannot lock hears of it at once.
    for client in clients {
        client.mutex(first).cancelled_by(stop).try_lock()?.release()?;
    }
    with_progress(time, |bar| {
        let part = |what: &'static str| {
            bar.set_message(what);
            Part::begin(stop, time / PARTS)
        };
        let nodes = measure::round_trips(locks, part("round trips"));
        let single = measure::pairs(locks, rest, part("one thread"))?;
        let several = measure::pairs(locks, names, part("several threads"))?;
        let pair = single.times.percentile(50).unwrap_or_default();
        let hand_over = measure::hand_over([locks, other], first, pair, part("hand-over"))?;
        Ok(Measured { nodes, single, several, threads: names.len(), hand_over })
    })
}

/// Deletes what is left of these names. The servers on which something may be left.
fn clean_up(locks: &LockManager, names: &[String]) -> Result<Vec<String>, Failed> {
    let is_clean = |it: &StoredLock| {
        it.key == StoredKey::Missing && it.counter.is_none() && it.waiting == 0 && it.reserved.is_none()
    };
    let until = now() + CLEAN_UP_FOR;
    let mut names: Vec<_> = names.iter().collect();
    loop {
        let (mut dirty, mut left) = (Vec::new(), BTreeSet::new());
        for name in names {
            let seen = locks.mutex(name).inspect()?;
            let rows = || seen.nodes().iter().map(|it| (it, it.stored.as_ref()));
            left.extend(
                rows().filter(|it| !it.1.is_ok_and(is_clean)).map(|(it, _)| format!("{} ({})", it.node, it.address)),
            );
            if rows().all(|it| it.1.is_err() || it.1.is_ok_and(is_clean)) {
                continue;
            }
            // RACE: on a server that is behind, the last release is still to come. So all of them are looked at once more.
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

/// Does the work beside a progress bar.
fn with_progress<T>(time: Duration, work: impl FnOnce(&ProgressBar) -> T) -> T {
    let millis = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
    // It is drawn on stderr, if that is a terminal.
    let bar = ProgressBar::new(millis(time));
    if let Ok(style) = ProgressStyle::with_template("{msg:16} {wide_bar} {percent:>3} %") {
        bar.set_style(style);
    }
    let (end, ended) = channel::<()>();
    let (moved, began) = (bar.clone(), now());
    let moves = move || {
        while ended.recv_timeout(REDRAWN) == Err(RecvTimeoutError::Timeout) {
            moved.set_position(millis(now().duration_since(began)));
        }
    };
    let done = thread::scope(|scope| {
        // Without this thread the bar stands still.
        let _ = thread::Builder::new().name("progress".into()).spawn_scoped(scope, moves);
        let done = work(&bar);
        drop(end);
        done
    });
    bar.finish_and_clear();
    done
}

/// From now on signals end the measurement, and what it has left is deleted.
#[cfg(unix)]
fn listen(stop: &CancelHandle, signal: &Arc<AtomicU8>) -> Result<(), Failed> {
    let (stop, signal) = (stop.clone(), Arc::clone(signal));
    let tell = move |number| {
        signal.store(u8::try_from(number).unwrap_or(0), Ordering::SeqCst);
        stop.cancel();
    };
    crate::signals::on_each(crate::signals::ENDING, tell)?;
    Ok(())
}

/// Whoever ends it here kills it: what is left expires.
#[cfg(not(unix))]
fn listen(_: &CancelHandle, _: &Arc<AtomicU8>) -> Result<(), Failed> {
    Ok(())
}
