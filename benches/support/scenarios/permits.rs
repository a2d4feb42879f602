//! How well is a semaphore used that fewer want than it has permits, and that more want?
//!
//! Ten permits, five nodes; each worker is a thread with a manager of its own, which takes a permit, stays inside for a
//! millisecond, gives it back, and asks again at once. "In use" is the share of what could be inside: of ten, or of the workers if
//! those are fewer. Rounds are per permit: 1 is the least. The longest is the longest wait for one, and a turn is how long a
//! worker waits if all get permits in turns, with nothing lost in between. Beside it, in turns, a mutex: eight workers that have
//! a key each, and thirty of which one can be inside.

use std::time::Duration;

use crate::support::Result;
use crate::support::loops::{Turns, take_turns};
use crate::support::ours::Ours;
use crate::support::runs::Runs;
use crate::support::servers::Nodes;
use crate::support::setting::{Setting, Target};
use crate::support::stats::{Table, num};

const PERMITS: usize = 10;
const INSIDE: Duration = Duration::from_millis(1);

/// What some workers want.
struct Group {
    name: &'static str,
    workers: usize,
    /// How many of them can be inside.
    room: usize,
    /// The group to compare with.
    beside: usize,
}

/// Their numbers.
const FEW: usize = 0;
const MANY: usize = 1;
const FEW_MUTEXES: usize = 2;
const ONE_MUTEX: usize = 3;
const GROUPS: [Group; 4] = [
    Group {
        name: "8 workers",
        workers: 8,
        room: 8,
        beside: FEW_MUTEXES,
    },
    Group {
        name: "30 workers",
        workers: 30,
        room: PERMITS,
        beside: ONE_MUTEX,
    },
    Group {
        name: "8 workers, a mutex each",
        workers: 8,
        room: 8,
        beside: FEW_MUTEXES,
    },
    Group {
        name: "30 workers, one mutex",
        workers: 30,
        room: 1,
        beside: ONE_MUTEX,
    },
];

struct Run {
    turns: Turns,
    room: usize,
    rounds: u64,
}

impl Run {
    fn in_use_percent(&self) -> f64 {
        100.0 * self.turns.inside(all) / self.room as f64
    }

    fn rounds_per_permit(&self) -> f64 {
        self.rounds as f64 / self.turns.count(all) as f64
    }

    fn permits_per_second(&self) -> f64 {
        self.turns.per_second(all)
    }

    fn longest_ms(&self) -> f64 {
        self.turns.waits(all).max_us() / 1e3
    }
}

fn all(_worker: usize) -> bool {
    true
}

pub(crate) fn run(setting: &Setting) -> Result {
    let nodes = Nodes::start()?;
    let (count, window) = (setting.runs(), Duration::from_secs(setting.size(3, 1)));
    setting.begin(&format!(
        "permits: a semaphore of {PERMITS}, {count} runs of {window:?} each, in turns"
    ));
    let urls = nodes.urls();
    let managers = (0..GROUPS[MANY].workers)
        .map(|_| Ours::open(&urls))
        .collect::<Result<Vec<_>>>()?;
    let mut runs = Runs::new(GROUPS.iter().map(|it| it.name));
    for _ in 0..count {
        for who in 0..GROUPS.len() {
            runs.push(who, one(who, &managers, window)?);
        }
    }
    let heading = [
        "",
        "in use %",
        "x mutex",
        "rounds",
        "permits/s",
        "x mutex",
        "median us",
        "p99 us",
        "longest ms",
        "x mutex",
    ];
    let mut table = Table::new(&heading);
    for (who, name) in runs.names() {
        let beside = GROUPS[who].beside;
        table.row([
            name.to_owned(),
            num(runs.median(who, Run::in_use_percent), 1),
            num(runs.ratio(who, beside, Run::in_use_percent), 2),
            num(runs.median(who, Run::rounds_per_permit), 2),
            num(runs.median(who, Run::permits_per_second), 0),
            num(runs.ratio(who, beside, Run::permits_per_second), 2),
            num(runs.median(who, |it| it.turns.waits(all).median_us()), 0),
            num(runs.median(who, |it| it.turns.waits(all).p99_us()), 0),
            num(runs.median(who, Run::longest_ms), 1),
            num(runs.ratio(who, beside, Run::longest_ms), 2),
        ]);
    }
    table.print();
    let rounds = |who| runs.median(who, Run::rounds_per_permit);
    setting.judge(
        Target::AtMost(1.3),
        "permits: rounds per permit, 8 workers",
        rounds(FEW),
        2,
    );
    setting.judge(
        Target::AtMost(4.0),
        "permits: rounds per permit, 30 workers",
        rounds(MANY),
        2,
    );
    Ok(())
}

/// All workers of a group for as long as the window is open.
fn one(who: usize, managers: &[Ours], window: Duration) -> Result<Run> {
    let Group { workers, room, .. } = GROUPS[who];
    let managers = &managers[..workers];
    let rounds = || managers.iter().map(|it| it.counts().rounds).sum::<u64>();
    let before = rounds();
    let turns = take_turns(workers, window, INSIDE, |worker, inside| match who {
        FEW_MUTEXES => managers[worker].mutex_turn(&format!("bench:permit:{worker}"), inside),
        ONE_MUTEX => managers[worker].mutex_turn("bench:permit", inside),
        _ => managers[worker].permit_turn("bench:permits", PERMITS, inside),
    })?;
    Ok(Run {
        turns,
        room,
        rounds: rounds() - before,
    })
}
