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
//! A *loss* is a fault that goes beyond what a majority makes up for: a node's clock was stepped forward, or, without
//! quarantine, a node forgot its keys. It excuses two holds only if it was done after one of them had been asked for and
//! before both were acquired: no other loss can take a node's vote from the one for the other.
//!
//! A *counter ahead* is a node that forgot a token which was more than a quarantine ahead of the node's own clock: the end of
//! the quarantine takes the counter's place, and cannot be larger then (`guide::safety`, what order rests on).
//!
//! Everything else that is done to nodes and clients excuses nothing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::history::{Effect, End, Event, Fault, History, Lease, Way};

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
///
/// It is sent as text, `count NAME NUMBER` and `objection RULE TEXT`.
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

    pub(crate) fn read<'a>(lines: impl Iterator<Item = &'a str>) -> Report {
        let mut report = Report::default();
        for line in lines {
            if let Some((name, number)) = line
                .strip_prefix("count ")
                .and_then(|it| it.rsplit_once(' '))
            {
                report
                    .counts
                    .insert(name.to_owned(), number.parse().unwrap());
            } else if let Some(objection) = line.strip_prefix("objection ") {
                report.objections.push(objection.to_owned());
            }
        }
        report
    }

    fn set(&mut self, name: &str, number: usize) {
        self.counts
            .insert(name.to_owned(), u64::try_from(number).unwrap());
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
        self.counts
            .iter()
            .try_for_each(|(name, number)| writeln!(f, "count {name} {number}"))?;
        self.objections
            .iter()
            .try_for_each(|it| writeln!(f, "objection {it}"))
    }
}

/// Compares everything with everything.
pub(crate) fn verdict(history: &History) -> Report {
    let mut report = Report::default();
    report.set("leases", history.leases.len());
    report.set(
        "leases-valid",
        history
            .leases
            .iter()
            .filter(|it| it.valid.is_some())
            .count(),
    );
    let is_lost = |it: &&Lease| it.end == End::Lost;
    report.set("lost", history.leases.iter().filter(is_lost).count());
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
        *report
            .counts
            .entry(format!("leases:{}", lease.work()))
            .or_default() += 1;
        lease
            .names
            .iter()
            .for_each(|it| of.entry(it).or_default().push(lease));
        if matches!(lease.way, Way::OneOf(_)) {
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
        report.object(
            "refused",
            history.excuses(by, refused) || history.excuses_order(by, refused),
            what,
        );
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
        let stops = history
            .stops
            .iter()
            .filter(|(client, ..)| *client == lease.client);
        for (_, from, to) in stops {
            if lease.acquired < *from && *to < last && lease.ttl <= to - from {
                report.object(
                    "honesty",
                    false,
                    format_args!("valid after a stop from {from} to {to}: {lease}"),
                );
            }
        }
    }
}

fn accesses(history: &History, events: &[Event], report: &mut Report) {
    // What a reader knows to be over comes behind the writer that has the same number.
    let rank = |it: &Lease| (it.token, it.way == Way::Beside);
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
                    report.object(
                        "stale-write",
                        false,
                        format_args!("{lease}; registered: {other}"),
                    );
                }
                if base != version {
                    report.object(
                        "lost-update",
                        false,
                        format_args!("version {base} for {version}: {lease}"),
                    );
                }
                version += 1;
            }
        }
    }
}

fn tokens(history: &History, leases: &[&Lease], report: &mut Report) {
    let mut seen: HashMap<u64, &Lease> = HashMap::new();
    for lease in leases.iter().filter(|it| it.way != Way::Beside) {
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
            report.object(
                "late-start",
                history.excuses_order(before, lease),
                history.between(before, lease),
            );
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
    let (mut highest, mut highest_alone): (Option<&Lease>, Option<&Lease>) = (None, None);
    let higher = |than: Option<&Lease>, lease: &Lease| than.is_none_or(|it| it.token < lease.token);
    for (from, to, lease) in held(leases) {
        running.retain(|(end, _)| from < *end);
        for (_, other) in running.iter().filter(|(_, it)| !it.bears(lease)) {
            report.object(
                "overlap",
                history.excuses(other, lease),
                history.between(other, lease),
            );
        }
        let before = if lease.way == Way::Beside {
            highest_alone
        } else {
            highest
        };
        if let Some(other) = before.filter(|it| !lease.comes_after(it)) {
            let excused = history.excuses(other, lease) || history.excuses_order(other, lease);
            report.object("order", excused, history.between(other, lease));
        } else {
            highest = if higher(highest, lease) {
                Some(lease)
            } else {
                highest
            };
            if lease.way != Way::Beside && higher(highest_alone, lease) {
                highest_alone = Some(lease);
            }
        }
        if running.iter().any(|(_, it)| it.bears(lease)) {
            *report
                .counts
                .entry("readers-together".to_owned())
                .or_default() += 1;
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
            *report
                .counts
                .entry("permits-together".to_owned())
                .or_default() += 1;
        }
        running.push((to, lease));
        if let Way::OneOf(permits) = lease.way
            && permits < running.len()
        {
            let all = || running.iter().map(|(_, it)| *it);
            let excused = all().any(|one| all().any(|other| history.excuses(one, other)));
            let all: Vec<_> = all().map(Lease::to_string).collect();
            report.object(
                "crowd",
                excused,
                format_args!("{} of {permits}: {}", all.len(), all.join("; and ")),
            );
        }
    }
}

impl History {
    /// Whether a fault can have given the second what the first had.
    fn excuses(&self, first: &Lease, second: &Lease) -> bool {
        let (from, to) = (
            first.asked.min(second.asked),
            first.acquired.max(second.acquired),
        );
        self.faults
            .iter()
            .filter(|it| it.from <= to && from <= it.to)
            .any(|it| match it.effect {
                Effect::None => false,
                Effect::Forgets => !self.quarantine,
                Effect::Hastens => true,
            })
    }

    /// Whether a node can have forgotten the first's token and have taken a smaller one of the second, because the token was
    /// ahead of the node's clock.
    fn excuses_order(&self, first: &Lease, second: &Lease) -> bool {
        let since = |it: &&Fault| first.asked <= it.to && it.from <= second.acquired;
        let forgotten = self
            .faults
            .iter()
            .filter(since)
            .filter(|it| it.effect == Effect::Forgets);
        forgotten.into_iter().any(|loss| {
            // The quarantine begins when a client sees the loss: the clock may have been set back by then.
            let later = self
                .faults
                .iter()
                .filter(since)
                .filter(|it| it.node == loss.node && loss.from <= it.from);
            let epoch = later.map(|it| it.epoch).min().unwrap_or(loss.epoch);
            epoch + (loss.to + first.ttl) / 1_000 < first.token
        })
    }

    /// Two leases and what was done while they lasted, for whoever has to find out.
    fn between(&self, first: &Lease, second: &Lease) -> String {
        let (from, to) = (
            first.asked.min(second.asked),
            second.window().map_or(second.acquired, |(_, to)| to),
        );
        let faults = self
            .faults
            .iter()
            .filter(|it| it.from <= to && from <= it.to);
        let faults: Vec<_> = faults
            .map(|it| format!("{} on {} from {} to {}", it.kind, it.node, it.from, it.to))
            .collect();
        let stops = self
            .stops
            .iter()
            .filter(|(_, stop, go_on)| *stop <= to && from <= *go_on);
        let stops: Vec<_> = stops
            .map(|(client, stop, go_on)| format!("client {client} stopped {stop} to {go_on}"))
            .collect();
        format!(
            "{first}; and {second}; meanwhile: {}",
            [faults, stops].concat().join(", ")
        )
    }
}
