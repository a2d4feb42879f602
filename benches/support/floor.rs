//! The raw floor: the least that a lock on a majority of servers can cost from one thread.
//!
//! Five sockets, the same command written to each, one `poll` over all of them, and on as soon as a majority has
//! answered: no other thread, no validity, no time-out logic. A client that keeps the promises of a lock cannot be
//! quicker from one thread, so its cost reads as a ratio to this.
//!
//! There are two: one sends the plain commands that other clients send, one sends [ours](form). The difference between
//! them is what fencing and order cost on the servers; the difference between the latter and us is our client. A third has
//! [a thread that waits](callers) for each pair, as programs without an async runtime have.
//!
//! With many locks at a time it is the same thread with as many pairs under way, and one write for all that is due. It
//! goes at the pace of the quickest majority, as long as the others do not fall behind by [too much](LAG): otherwise two
//! of the servers would do part of the work when nobody measures any more.

mod callers;
mod form;
mod notify;
pub(crate) mod process;
mod wire;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use self::form::Form;
use self::form::{DELETE, Pair};
use self::wire::{Decided, Wire, hashes};
use super::sections::{Job, Report, Section};
use super::stats::{Samples, process_cpu, shared_clock, sleep_until};

/// So many commands for each pair under way may be unanswered by the slowest node. That is enough for one to which the
/// way is ten times as long.
const LAG: usize = 20;
/// The same for few pairs.
const LAG_MIN: usize = 128;

/// One connection to each node, and what is sent over them.
pub(crate) struct Floor {
    name: &'static str,
    wire: Wire,
    form: Form,
    /// Each pair under way has a thread that waits for it: see [`callers`].
    blocks: bool,
}

impl Floor {
    /// With plain commands.
    ///
    /// # Errors
    ///
    /// If a node cannot be reached: the floor is measured on healthy servers.
    pub(crate) fn plain(addrs: &[SocketAddr]) -> io::Result<Self> {
        let (wire, said) = Wire::connect(addrs, &[&["SCRIPT", "LOAD", DELETE]])?;
        let [delete] = hashes(&said)?;
        Ok(Self {
            name: "floor",
            wire,
            form: Form::plain(&delete),
            blocks: false,
        })
    }

    /// With the commands in `form`, whose scripts the nodes know.
    ///
    /// # Errors
    ///
    /// As for [`plain`](Self::plain).
    pub(crate) fn with_scripts(addrs: &[SocketAddr], form: Form) -> io::Result<Self> {
        let (wire, _) = Wire::connect(addrs, &[])?;
        Ok(Self {
            name: "floor, our scripts",
            wire,
            form,
            blocks: false,
        })
    }

    /// The same with a thread that waits for each pair.
    ///
    /// # Errors
    ///
    /// As for [`plain`](Self::plain).
    pub(crate) fn of_callers(addrs: &[SocketAddr], form: Form) -> io::Result<Self> {
        Ok(Self {
            name: "floor, our scripts, threads",
            blocks: true,
            ..Self::with_scripts(addrs, form)?
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Acquires and releases `n` times, one after the other.
    ///
    /// # Errors
    ///
    /// If a majority did not answer, or refused.
    pub(crate) fn pairs(&mut self, n: usize, name: &str) -> io::Result<Samples> {
        self.run(vec![self.form.of_lock(name)], |done| done < n)
    }

    /// Acquires and releases for `window`, `n` locks at a time.
    ///
    /// # Errors
    ///
    /// As for [`pairs`](Self::pairs).
    pub(crate) fn window(&mut self, n: usize, window: Duration, name: &str) -> io::Result<Samples> {
        let start = Instant::now();
        let locks = (0..n)
            .map(|i| self.form.of_lock(&format!("{name}:{i}")))
            .collect();
        self.run(locks, |_| start.elapsed() < window)
    }

    /// Waits until all nodes have answered everything, for which nobody else waits.
    ///
    /// # Errors
    ///
    /// If one does not.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        while self.wire.owed() > 0 {
            self.wire.turn(&mut Vec::new())?;
        }
        Ok(())
    }

    /// Runs pairs on each of the locks for as long as `goes_on` says, which is told how many there were.
    fn run(
        &mut self,
        locks: Vec<Pair>,
        goes_on: impl Fn(usize) -> bool + Sync,
    ) -> io::Result<Samples> {
        if self.blocks {
            return callers::run(&mut self.wire, locks, &goes_on);
        }
        let (mut samples, start) = (Samples::default(), Instant::now());
        let most = LAG_MIN.max(locks.len() * LAG);
        let mut callers: Vec<_> = locks
            .into_iter()
            .map(|pair| Caller {
                pair,
                since: start,
                acquires: true,
            })
            .collect();
        // Those that begin a pair.
        let mut ready: VecDeque<usize> = (0..callers.len()).collect();
        let (mut running, mut decided) = (callers.len(), Vec::new());
        while running > 0 {
            while self.wire.owed() < most
                && let Some(tag) = ready.pop_front()
            {
                self.wire.push(tag, |out| callers[tag].pair.acquire(out));
            }
            self.wire.turn(&mut decided)?;
            for it in decided.drain(..) {
                let caller = &mut callers[is_granted(it)?];
                caller.acquires = !caller.acquires;
                if !caller.acquires {
                    self.wire.push(it.tag, |out| caller.pair.release(out));
                    continue;
                }
                let now = Instant::now();
                samples.push(now.duration_since(caller.since));
                caller.since = now;
                if goes_on(samples.len()) {
                    ready.push_back(it.tag);
                } else {
                    running -= 1;
                }
            }
        }
        Ok(samples)
    }

    /// A perfect queue: so many workers want one lock, and have it in turns. The release of one and the acquire of the
    /// next go out in one write, so that between two of them there is one round.
    ///
    /// # Errors
    ///
    /// As for [`pairs`](Self::pairs).
    pub(crate) fn queue(&mut self, workers: usize, job: &Job) -> io::Result<Report> {
        let cpu = process_cpu();
        let mut pair = self.form.of_lock(&job.name);
        let mut report = Report {
            workers: vec![Vec::new(); workers],
            ..Report::default()
        };
        let mut called = vec![job.begin; workers];
        sleep_until(job.begin);
        self.wire.push(0, |out| pair.acquire(out));
        self.wire
            .turns(1)?
            .into_iter()
            .try_for_each(|it| is_granted(it).map(drop))?;
        for worker in (0..workers).cycle() {
            let entered = shared_clock();
            if job.end <= entered {
                break;
            }
            thread::sleep(job.inside);
            report.workers[worker].push(Section {
                called: called[worker],
                entered,
                left: shared_clock(),
            });
            self.wire.push(0, |out| pair.release(out));
            self.wire.push(0, |out| pair.acquire(out));
            self.wire
                .turns(2)?
                .into_iter()
                .try_for_each(|it| is_granted(it).map(drop))?;
            called[worker] = shared_clock();
        }
        self.wire.push(0, |out| pair.release(out));
        self.wire.turns(1)?;
        report.cpu = process_cpu().saturating_sub(cpu);
        Ok(report)
    }
}

/// A lock with pairs under way.
struct Caller {
    pair: Pair,
    since: Instant,
    /// Otherwise it releases.
    acquires: bool,
}

/// Whose command it was. Nobody else uses the names of a floor.
fn is_granted(it: Decided) -> io::Result<usize> {
    if it.granted {
        Ok(it.tag)
    } else {
        Err(refused())
    }
}

fn refused() -> io::Error {
    io::Error::other("the floor was refused")
}
