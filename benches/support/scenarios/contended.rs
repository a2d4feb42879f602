//! How well is a lock used that many want all the time, and how evenly do they get it?
//!
//! Each worker locks, stays inside for a millisecond, releases, and asks again at once. The workers are the threads of
//! one manager, or processes, each with a manager of its own. All of them report when they were inside, on the clock
//! they share: two at once end the bench.
//!
//! "Held" is the share of the time in which somebody was inside. A "turn" is how long a worker waits if all get the
//! lock in turns: as many sections, with the gaps between them, as there are workers. "Luck" is the sections of the
//! worker who got most, to those of the one who got least. Commands are those a manager hands to the nodes, all nodes
//! together, and scripts what the nodes say they ran; both per section, as are rounds: a lock that is handed over ends one
//! as well. "Cpu us" is the processor time of the client's processes per section, "servers us" that of all servers.
//!
//! The floor is a perfect queue: one thread with as many workers in its head, who get the lock in turns, with one round
//! between two of them.
//!
//! The windows of the clients alternate, in an order that rotates. Held and the longest wait are medians of the
//! windows; the rest is of all together.

use std::time::Duration;

use crate::support::Result;
use crate::support::peer::Peer;
use crate::support::sections::{Counts, Job, Report, Section, overlaps};
use crate::support::servers::{Calls, Nodes};
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Samples, Table, median, num, shared_clock};

const FLOOR: &str = "floor, a perfect queue";
/// The peer to compare with, with the retries it comes with; beside threads it runs tasks.
const PEER: &str = "rslock-mt";
/// How long each worker stays inside.
const INSIDE: Duration = Duration::from_millis(1);
/// For everybody to have read what to do.
const RUN_UP: Duration = Duration::from_millis(100);
/// Beyond that, waits are so long that a peer's windows would measure who came first.
const PEER_MAX: usize = 8;

pub(crate) struct Group {
    what: &'static str,
    processes: usize,
    threads: usize,
    /// Percent of the time that the lock is to be held, and commands per section at most.
    targets: Option<(f64, f64)>,
}

pub(crate) const GROUPS: [Group; 4] = [
    Group {
        what: "8 threads of one process",
        processes: 1,
        threads: 8,
        targets: Some((88.0, 10.0)),
    },
    Group {
        what: "8 processes",
        processes: 8,
        threads: 1,
        targets: Some((75.0, 25.0)),
    },
    Group {
        what: "2 processes",
        processes: 2,
        threads: 1,
        targets: None,
    },
    Group {
        what: "32 processes",
        processes: 32,
        threads: 1,
        targets: None,
    },
];

/// The longest wait, in turns.
const TURNS_MAX: f64 = 3.0;

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    for (group, scores) in GROUPS.iter().zip(on(&nodes, setting, true, &GROUPS)?) {
        let Some((held, commands)) = group.targets else {
            continue;
        };
        for score in scores.iter().filter(|it| !it.is_floor() && it.name != PEER) {
            let judge = |target: Target, what: &str, value| {
                setting.judge(
                    target,
                    &format!("{}: {}: {what}", group.what, score.name),
                    value,
                    1,
                )
            };
            judge(Target::AtLeast(held), "held, %", score.held_percent());
            judge(
                Target::AtMost(TURNS_MAX),
                "longest wait, x turn",
                score.longest_in_turns(),
            );
            judge(
                Target::AtMost(commands),
                "commands per section",
                score.per_section(|it| it.commands),
            );
            judge(Target::AtMost(0.0), "errors", score.errors.errors as f64);
        }
    }
    Ok(())
}

/// Runs the groups, with the peer or without, and prints what became of them.
pub(crate) fn on(
    nodes: &Nodes,
    setting: &Setting,
    with_peer: bool,
    groups: &[Group],
) -> Result<Vec<Vec<Score>>> {
    let windows = setting.runs();
    let window = Duration::from_secs(setting.size(2, 1));
    let urls = nodes.urls();
    let most = groups.iter().map(|it| it.processes).max().unwrap_or(0);
    let mut floor = [Peer::floor(&urls)?];
    let mut ours = (0..most)
        .map(|_| Peer::ours(&urls))
        .collect::<std::io::Result<Vec<_>>>()?;
    let mut others = Vec::new();
    if with_peer {
        for _ in 0..PEER_MAX {
            others.push(Peer::other(PEER, &urls)?);
        }
    }
    for process in floor.iter_mut().chain(&mut ours).chain(&mut others) {
        process.warm_up()?;
    }
    let mut all = Vec::new();
    for group in groups {
        setting.begin(&format!(
            "contended: {}, {INSIDE:?} inside, {windows} windows of {window:?}",
            group.what
        ));
        let mut scores = vec![Score::new(FLOOR), Score::new("quorlock")];
        if group.processes <= others.len() {
            scores.push(Score::new(PEER));
        }
        for turn in 0..windows {
            let count = scores.len();
            for i in (0..count).map(|i| (i + turn) % count) {
                let score = &mut scores[i];
                let (team, threads) = match score.name {
                    FLOOR => (&mut floor[..], group.processes * group.threads),
                    PEER => (&mut others[..group.processes], group.threads),
                    _ => (&mut ours[..group.processes], group.threads),
                };
                score.window(nodes, team, threads, window)?;
            }
        }
        print(&scores);
        all.push(scores);
    }
    Ok(all)
}

/// What one client did in all its windows.
pub(crate) struct Score {
    name: &'static str,
    wall_ns: u64,
    /// Percent, of each window.
    held: Vec<f64>,
    /// The longest wait in each window, in milliseconds.
    longest_ms: Vec<f64>,
    /// Sections of each worker that began within the windows.
    sections: Vec<usize>,
    /// All times that a lock was taken: after the end of a window, workers that wait still get it.
    taken: usize,
    waits: Samples,
    counts: Option<Counts>,
    scripts: u64,
    cpu: Duration,
    /// Of all servers together.
    servers: Duration,
    errors: Report,
    overlaps: usize,
}

impl Score {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            wall_ns: 0,
            held: Vec::new(),
            longest_ms: Vec::new(),
            sections: Vec::new(),
            taken: 0,
            waits: Samples::default(),
            counts: None,
            scripts: 0,
            cpu: Duration::ZERO,
            servers: Duration::ZERO,
            errors: Report::default(),
            overlaps: 0,
        }
    }

    /// Runs one window in each process of `team`.
    ///
    /// # Errors
    ///
    /// If two of ours were inside at the same time, or a process does not answer.
    fn window(
        &mut self,
        nodes: &Nodes,
        team: &mut [Peer],
        threads: usize,
        window: Duration,
    ) -> Result {
        let before = nodes.calls()?;
        let begin = shared_clock() + ns(RUN_UP);
        let end = begin + ns(window);
        let name = format!("bench:contended:{}", team[0].name());
        let job = Job {
            begin,
            end,
            inside: INSIDE,
            name,
        };
        for process in &mut *team {
            process.begin_sections(threads, &job)?;
        }
        let (reports, servers) = nodes.metered(|| {
            let reports = team.iter_mut().map(Peer::sections);
            Ok(reports.collect::<std::io::Result<Vec<_>>>()?)
        })?;
        self.servers += servers;
        self.scripts += Calls::since(&nodes.calls()?, &before)
            .iter()
            .map(|it| it.scripts)
            .sum::<u64>();

        let overlaps = overlaps(&reports);
        if overlaps != 0 && self.name != PEER {
            return Err(format!("{}: {overlaps} times two were inside at once", self.name).into());
        }
        self.overlaps += overlaps;
        self.wall_ns += end - begin;
        self.sections.resize(team.len() * threads, 0);
        let (mut worker, mut inside_ns, mut longest_ns) = (0, 0, 0);
        for report in reports {
            for sections in &report.workers {
                inside_ns += self.enter(worker, sections, end);
                longest_ns = sections
                    .iter()
                    .map(|it| it.entered - it.called)
                    .fold(longest_ns, u64::max);
                worker += 1;
            }
            self.cpu += report.cpu;
            if let Some(counts) = report.counts {
                let sum = self.counts.get_or_insert_default();
                sum.commands += counts.commands;
                sum.rounds += counts.rounds;
                sum.won += counts.won;
            }
            self.errors.merge(Report {
                workers: Vec::new(),
                ..report
            });
        }
        self.held
            .push(inside_ns as f64 / (end - begin) as f64 * 100.0);
        self.longest_ms.push(longest_ns as f64 / 1e6);
        Ok(())
    }

    /// How long the worker was inside before the end.
    fn enter(&mut self, worker: usize, sections: &[Section], end: u64) -> u64 {
        self.taken += sections.len();
        let mut inside_ns = 0;
        for section in sections {
            self.waits.push_ns(section.entered - section.called);
            if section.entered < end {
                self.sections[worker] += 1;
                inside_ns += section.left.min(end) - section.entered;
            }
        }
        inside_ns
    }

    fn is_floor(&self) -> bool {
        self.name == FLOOR
    }

    pub(crate) fn held_percent(&self) -> f64 {
        median(&self.held)
    }

    fn longest_ms(&self) -> f64 {
        median(&self.longest_ms)
    }

    /// Microseconds between two turns of a worker if all of them take turns.
    fn turn_us(&self) -> f64 {
        let sections: usize = self.sections.iter().sum();
        self.wall_ns as f64 / 1e3 / sections as f64 * self.sections.len() as f64
    }

    fn longest_in_turns(&self) -> f64 {
        self.longest_ms() * 1e3 / self.turn_us()
    }

    fn luck(&self) -> String {
        match (self.sections.iter().max(), self.sections.iter().min()) {
            (Some(most), Some(0)) => format!("{most} to 0"),
            (Some(most), Some(least)) => num(*most as f64 / *least as f64, 2),
            _ => num(f64::NAN, 2),
        }
    }

    /// One of the client's own counters, per lock taken.
    fn per_section(&self, number: fn(&Counts) -> u64) -> f64 {
        self.counts
            .as_ref()
            .map_or(f64::NAN, |it| number(it) as f64 / self.taken as f64)
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn print(scores: &[Score]) {
    let heading = [
        "",
        "x floor",
        "held %",
        "sections/s",
        "turn ms",
        "p50 wait ms",
        "p99 wait ms",
        "longest ms",
        "x turn",
        "luck",
        "commands",
        "scripts",
        "rounds",
        "cpu us",
        "servers us",
        "errors",
    ];
    let mut table = Table::new(&heading);
    for score in scores {
        let sections: usize = score.sections.iter().sum();
        let per_lock = |it: Duration| num(it.as_secs_f64() * 1e6 / score.taken as f64, 0);
        table.row([
            score.name.to_owned(),
            num(score.held_percent() / scores[0].held_percent(), 2),
            num(score.held_percent(), 1),
            num(sections as f64 / score.wall_ns as f64 * 1e9, 0),
            num(score.turn_us() / 1e3, 1),
            num(score.waits.median_us() / 1e3, 1),
            num(score.waits.p99_us() / 1e3, 1),
            num(score.longest_ms(), 1),
            num(score.longest_in_turns(), 2),
            score.luck(),
            num(score.per_section(|it| it.commands), 1),
            num(score.scripts as f64 / score.taken as f64, 1),
            score.counts.map_or(num(f64::NAN, 2), |it| {
                num(it.rounds as f64 / it.won as f64, 2)
            }),
            per_lock(score.cpu),
            per_lock(score.servers),
            score.errors.errors.to_string(),
        ]);
    }
    table.print();
    for Score {
        name,
        errors,
        overlaps,
        ..
    } in scores
    {
        if errors.errors != 0 {
            println!(
                "  {name}: {} errors, the first: {}",
                errors.errors, errors.first_error
            );
        }
        if *overlaps != 0 {
            println!("  {name}: {overlaps} TIMES TWO WERE INSIDE AT ONCE");
        }
    }
}
