//! What the judge objects to, once everything is written down.
//!
//! | rule | objects to | excused by |
//! | --- | --- | --- |
//! | `stale-write` | a write that was accepted after a larger token had been registered | nothing |
//! | `lost-update` | an accepted write that was made from an older version than the one it replaced | nothing |
//! | `duplicate` | two holds with one token, and no readers | nothing |
//! | `late-start` | a hold that was asked for after another had been acquired, and whose token is not larger; a reader's may be equal | a counter ahead |
//! | `honesty` | a guard that is valid for longer than it said, or than a ttl can give | nothing |
//! | `overlap` | two holds of one name that were valid at once, and not both of readers | a loss |
//! | `crowd` | more holds than permits that were valid at once | a loss |
//! | `order` | as `late-start`, for a hold that began to be valid after another; two readers have no order | a loss, a counter ahead |
//! | `refused` | a hold that the resource refused and that was valid afterwards | a loss, a counter ahead |
//! | `torn` | a hold that read two versions, or half of what another one did, and was valid afterwards | a loss |
//!
//! A *loss* is a fault that goes beyond what a majority makes up for: a node's clock was stepped
//! forward. It excuses two holds only if it was done after one of them had been asked for and
//! before both were acquired: no other loss can take a node's vote from the one for the other.
//!
//! A *counter ahead* is a node that forgot a token which was more than a quarantine ahead of the node's own clock: the end of
//! the quarantine takes the counter's place, and cannot be larger then (`guide::safety`, what order rests on).
//!
//! Everything else that is done to nodes and clients excuses nothing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::history::{Effect, End, Event, Fault, History, Lease, Mode};

/// The rules, in the order of the table.
pub(crate) const RULES: [&str; 10] = [
    "stale-write",
    "lost-update",
    "duplicate",
    "late-start",
    "honesty",
    "overlap",
    "crowd",
    "order",
    "refused",
    "torn",
];

/// What is kept of each rule's objections in words; all are counted.
const TOLD: usize = 5;

/// The judge's report: a line per number, and a line per objection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) counts: BTreeMap<String, u64>,
    pub(crate) objections: Vec<String>,
}

impl Report {
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// How often the judge objected under `rule`.
    pub(crate) fn objections_to(&self, rule: &str) -> u64 {
        self.count(&format!("objections:{rule}"))
    }

    /// How often it would have, had no loss excused it.
    pub(crate) fn excused(&self, rule: &str) -> u64 {
        self.count(&format!("excused:{rule}"))
    }

    pub(crate) fn violations(&self) -> u64 {
        RULES.iter().map(|it| self.objections_to(it)).sum()
    }

    fn set(&mut self, name: &str, number: usize) {
        self.counts
            .insert(name.to_owned(), u64::try_from(number).unwrap());
    }

    fn add(&mut self, name: &str) {
        *self.counts.entry(name.to_owned()).or_default() += 1;
    }

    fn object(&mut self, rule: &str, excused: bool, what: impl fmt::Display) {
        let kind = if excused { "excused" } else { "objections" };
        let count = self.counts.entry(format!("{kind}:{rule}")).or_default();
        *count += 1;
        if !excused && *count <= TOLD as u64 {
            self.objections.push(format!("{rule} {what}"));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, number) in &self.counts {
            writeln!(f, "count {name} {number}")?;
        }
        let mut objections = self.objections.iter();
        objections.try_for_each(|it| writeln!(f, "objection {it}"))
    }
}

/// Compares everything with everything.
pub(crate) fn verdict(history: &History) -> Report {
    let mut report = Report::default();
    report.set("leases", history.leases.len());
    let count = |is: fn(&&Lease) -> bool| history.leases.iter().filter(is).count();
    report.set("leases-valid", count(|it| it.valid.is_some()));
    report.set("lost", count(|it| it.end == End::Lost));
    report.counts.insert("stale".to_owned(), history.stale);
    report.counts.insert("writes".to_owned(), history.writes);
    for (why, number) in &history.failed {
        report.counts.insert(format!("failed:{why}"), *number);
    }

    for what in &history.dishonest {
        report.object("honesty", false, what);
    }
    slept_through(history, &mut report);
    for resource in history.resources.values() {
        accesses(history, &resource.events, &mut report);
    }
    let mut of: BTreeMap<&str, Vec<&Lease>> = BTreeMap::new();
    let mut permits: BTreeMap<&str, Vec<&Lease>> = BTreeMap::new();
    for lease in &history.leases {
        report.add(&format!("leases:{}", lease.work()));
        for name in &lease.names {
            of.entry(name).or_default().push(lease);
        }
        if matches!(lease.mode, Mode::OneOf(_)) {
            permits.entry(lease.work()).or_default().push(lease);
        }
    }
    for leases in of.values() {
        tokens(history, leases, &mut report);
        windows(history, leases, &mut report);
    }
    for leases in permits.values() {
        crowds(history, leases, &mut report);
    }
    for (earlier, later, at) in &history.refused_while_valid {
        let (by, refused) = (&history.leases[*earlier], &history.leases[*later]);
        let what = format_args!("at {at}: {}", history.between(by, refused));
        let excused = history.excuses(by, refused) || history.excuses_order(by, refused);
        report.object("refused", excused, what);
    }
    for (writer, reader, at) in &history.torn_while_valid {
        let (writer, reader) = (&history.leases[*writer], &history.leases[*reader]);
        let what = format_args!("at {at}: {}", history.between(writer, reader));
        report.object("torn", history.excuses(writer, reader), what);
    }
    report
}

/// A process that was stopped for a ttl cannot have extended anything meanwhile.
fn slept_through(history: &History, report: &mut Report) {
    for lease in &history.leases {
        let Some((_, last)) = lease.valid else {
            continue;
        };
        for (client, from, to) in &history.stops {
            let in_it = *client == lease.client && lease.acquired < *from && *to < last;
            if in_it && lease.ttl <= to - from {
                let what = format_args!("valid after a stop from {from} to {to}: {lease}");
                report.object("honesty", false, what);
            }
        }
    }
}

fn accesses(history: &History, events: &[Event], report: &mut Report) {
    // What a reader knows to be over comes behind the writer that has the same number.
    let rank = |it: &Lease| (it.token, it.mode == Mode::Shared);
    let mut highest: Option<&Lease> = None;
    let mut version = 0;
    for event in events {
        match *event {
            Event::Registered { lease } => {
                let lease = &history.leases[lease];
                if highest.is_none_or(|it| rank(it) < rank(lease)) {
                    highest = Some(lease);
                }
            }
            Event::Wrote { lease, base } => {
                let lease = &history.leases[lease];
                if let Some(other) = highest.filter(|it| rank(lease) < rank(it)) {
                    let what = format_args!("{lease}; registered: {other}");
                    report.object("stale-write", false, what);
                }
                if base != version {
                    let what = format_args!("version {base} for {version}: {lease}");
                    report.object("lost-update", false, what);
                }
                version += 1;
            }
        }
    }
}

fn tokens(history: &History, leases: &[&Lease], report: &mut Report) {
    let mut seen: HashMap<u64, &Lease> = HashMap::new();
    for lease in leases.iter().filter(|it| it.mode != Mode::Shared) {
        if let Some(other) = seen.insert(lease.token, lease) {
            report.object("duplicate", false, format_args!("{lease}; and {other}"));
        }
    }

    let (mut by_start, mut by_end) = (leases.to_vec(), leases.to_vec());
    by_start.sort_unstable_by_key(|it| it.asked);
    by_end.sort_unstable_by_key(|it| it.acquired);
    let mut finished = by_end.into_iter().peekable();
    let mut highest: Option<&Lease> = None;
    for lease in by_start {
        while let Some(before) = finished.next_if(|it| it.acquired < lease.asked) {
            if highest.is_none_or(|it| it.token < before.token) {
                highest = Some(before);
            }
        }
        if let Some(before) = highest.filter(|it| !lease.comes_after(it)) {
            let excused = history.excuses_order(before, lease);
            report.object("late-start", excused, history.between(before, lease));
        }
    }
}

/// When they were valid, in order.
fn held<'a>(leases: &[&'a Lease]) -> Vec<(u64, u64, &'a Lease)> {
    let windows = leases
        .iter()
        .filter_map(|it| it.window().map(|(from, to)| (from, to, *it)));
    let mut held: Vec<_> = windows.collect();
    held.sort_unstable_by_key(|(from, ..)| *from);
    held
}

fn windows(history: &History, leases: &[&Lease], report: &mut Report) {
    let mut running: Vec<(u64, &Lease)> = Vec::new();
    // Of all, and of those that are no readers.
    let (mut highest, mut highest_exclusive): (Option<&Lease>, Option<&Lease>) = (None, None);
    let higher = |than: Option<&Lease>, lease: &Lease| than.is_none_or(|it| it.token < lease.token);
    for (from, to, lease) in held(leases) {
        running.retain(|(end, _)| from < *end);
        for (_, other) in running.iter().filter(|(_, it)| !it.bears(lease)) {
            let excused = history.excuses(other, lease);
            report.object("overlap", excused, history.between(other, lease));
        }
        let before = if lease.mode == Mode::Shared {
            highest_exclusive
        } else {
            highest
        };
        if let Some(other) = before.filter(|it| !lease.comes_after(it)) {
            let excused = history.excuses(other, lease) || history.excuses_order(other, lease);
            report.object("order", excused, history.between(other, lease));
        } else {
            if higher(highest, lease) {
                highest = Some(lease);
            }
            if lease.mode != Mode::Shared && higher(highest_exclusive, lease) {
                highest_exclusive = Some(lease);
            }
        }
        if running.iter().any(|(_, it)| it.bears(lease)) {
            report.add("readers-together");
        }
        running.push((to, lease));
    }
}

/// That no slot has two holders is seen as well; but this is what a semaphore is for.
fn crowds(history: &History, leases: &[&Lease], report: &mut Report) {
    let mut running: Vec<(u64, &Lease)> = Vec::new();
    for (from, to, lease) in held(leases) {
        running.retain(|(end, _)| from < *end);
        if !running.is_empty() {
            report.add("permits-together");
        }
        running.push((to, lease));
        if let Mode::OneOf(permits) = lease.mode
            && permits < running.len()
        {
            let all = || running.iter().map(|(_, it)| *it);
            let excused = all().any(|one| all().any(|other| history.excuses(one, other)));
            let all: Vec<_> = all().map(Lease::to_string).collect();
            let what = format_args!("{} of {permits}: {}", all.len(), all.join("; and "));
            report.object("crowd", excused, what);
        }
    }
}

impl History {
    fn faults_between(&self, from: u64, to: u64) -> impl Iterator<Item = &Fault> {
        let faults = self.faults.iter();
        faults.filter(move |it| it.from <= to && from <= it.to)
    }

    /// Whether a fault can have given the second what the first had.
    fn excuses(&self, first: &Lease, second: &Lease) -> bool {
        let from = first.asked.min(second.asked);
        let to = first.acquired.max(second.acquired);
        let mut faults = self.faults_between(from, to);
        faults.any(|it| it.effect == Effect::Hastens)
    }

    /// Whether a node can have forgotten the first's token and have taken a smaller one of the second, because the token was
    /// ahead of the node's clock.
    fn excuses_order(&self, first: &Lease, second: &Lease) -> bool {
        let since = |it: &&Fault| first.asked <= it.to && it.from <= second.acquired;
        let faults = || self.faults.iter().filter(since);
        let mut forgotten = faults().filter(|it| it.effect == Effect::Forgets);
        forgotten.any(|loss| {
            // The quarantine begins when a client sees the loss: the clock may have been set back by then.
            let later = faults().filter(|it| it.node == loss.node && loss.from <= it.from);
            let epoch = later.map(|it| it.epoch).min().unwrap_or(loss.epoch);
            epoch + (loss.to + first.ttl) / 1_000 < first.token
        })
    }

    /// Two leases and what was done while they lasted, for whoever has to find out.
    fn between(&self, first: &Lease, second: &Lease) -> String {
        let from = first.asked.min(second.asked);
        let to = second.window().map_or(second.acquired, |(_, to)| to);
        let faults: Vec<_> = self
            .faults_between(from, to)
            .map(|it| format!("{} on n{} from {} to {}", it.kind, it.node, it.from, it.to))
            .collect();
        let is_between = |(_, stop, go_on): &&(u64, u64, u64)| *stop <= to && from <= *go_on;
        let stops = self.stops.iter().filter(is_between);
        let stops: Vec<_> = stops
            .map(|(client, stop, go_on)| format!("client {client} stopped {stop} to {go_on}"))
            .collect();
        let meanwhile = [faults, stops].concat().join(", ");
        format!("{first}; and {second}; meanwhile: {meanwhile}")
    }
}
