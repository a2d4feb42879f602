//! The state of a lock, for people and for programs.

use std::str::Utf8Chunk;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quorlock::error::{NodeCheck, NodeFailure, QuarantineReason};
use quorlock::inspection::{InspectedNode, Inspection, Listing, LockState, StoredKey, StoredLock};
use quorlock::once::RunRecord;
use quorlock::{AcquireError, LockManager};
use serde_json::{Value, json};

use crate::show;

/// Inspects a lock, or each permit of a semaphore.
pub(crate) fn of(
    locks: &LockManager,
    name: &str,
    permits: Option<usize>,
) -> Result<Vec<Inspection>, AcquireError> {
    match permits {
        Some(permits) => locks.semaphore(name, permits).inspect(),
        None => Ok(vec![locks.mutex(name).inspect()?]),
    }
}

/// A line for the lock, and a table of the servers.
pub(crate) fn text(lock: &Inspection) -> String {
    let header = ["NODE", "ADDRESS", "LOCK", "LEFT", "COUNTER", "WAITING"];
    format!(
        "{}: {}{}\n{}",
        name(lock),
        lock.state(),
        not_on(lock),
        show::table(&header, lock.nodes().iter().map(cells))
    )
}

/// A line for the last run of a job.
pub(crate) fn run(name: &str, run: Option<&RunRecord>) -> String {
    let text = run.map_or("no run is recorded".to_owned(), |run| {
        let ago = show::time(run.at.elapsed().unwrap_or_default());
        format!("{run}, {ago} ago {}", shown(run.note.as_bytes()))
    });
    format!("{}: {}", shown(name.as_bytes()), text.trim_end())
}

pub(crate) fn run_object(name: &str, run: Option<&RunRecord>) -> Value {
    let run = run.map(|run| {
        let at = run.at.duration_since(SystemTime::UNIX_EPOCH);
        json!({
            "state": run.state.to_string(), "period": run.period, "token": run.token.get(),
            "by": run.by, "at": at.unwrap_or_default().as_secs_f64(), "note": run.note,
        })
    });
    json!({ "quorlock": 1, "name": name, "run": run })
}

pub(crate) fn name(lock: &Inspection) -> String {
    shown(lock.name())
}

/// A name as text on one line, without quotation marks around it: these need no escape.
pub(crate) fn shown(name: &[u8]) -> String {
    let part = |chunk: Utf8Chunk<'_>| {
        format!(
            "{}{}",
            chunk.valid().escape_debug(),
            chunk.invalid().escape_ascii()
        )
    };
    let text: String = name.utf8_chunks().map(part).collect();
    text.replace("\\'", "'").replace("\\\"", "\"")
}

/// The name, and the slot of a permit.
pub(crate) fn label(lock: &Inspection) -> String {
    match lock.slot() {
        Some(slot) => format!("{} (slot {slot})", name(lock)),
        None => name(lock),
    }
}

fn cells(row: &InspectedNode) -> Vec<String> {
    let mut cells = vec![row.node.to_string(), row.address.to_string()];
    match &row.stored {
        Err(failure) => cells.push(failure.to_string()),
        Ok(stored) => {
            cells.push(holder(&stored.key));
            cells.push(if stored.key == StoredKey::Missing {
                String::new()
            } else {
                left(stored.left)
            });
            cells.push(stored.counter.map(|it| it.to_string()).unwrap_or_default());
            cells.push(waiting(stored));
        }
    }
    cells
}

fn holder(key: &StoredKey) -> String {
    match key {
        StoredKey::Missing => "free".to_owned(),
        StoredKey::Held { holder, .. } => by(holder).to_owned(),
        StoredKey::Read { count, .. } => format!("readers: {count}"),
        StoredKey::Foreign => "another program".to_owned(),
        _ => "not a lock: another type".to_owned(),
    }
}

pub(crate) fn by(holder: &Option<Arc<str>>) -> &str {
    holder.as_deref().unwrap_or("another client")
}

pub(crate) fn left(left: Option<Duration>) -> String {
    left.map_or_else(|| "no expiry".to_owned(), show::time)
}

fn waiting(stored: &StoredLock) -> String {
    match stored.waiting_for {
        Some(time) => format!("{}, {}", stored.waiting, show::time(time)),
        None => stored.waiting.to_string(),
    }
}

/// A line for each lock or slot.
pub(crate) fn lines(
    first: &str,
    locks: &[Inspection],
    label: impl Fn(&Inspection) -> String,
) -> String {
    let row = |it: &Inspection| {
        let (state, time) = match it.state() {
            LockState::Free => ("free".to_owned(), String::new()),
            LockState::Held { holder, left: time } => {
                (format!("held by {}", by(&holder)), left(time))
            }
            LockState::Read {
                readers,
                left: time,
            } => (format!("readers: {readers}"), left(time)),
            other => (other.to_string(), String::new()),
        };
        let stored = it.nodes().iter().flat_map(|row| &row.stored);
        let waits = stored
            .max_by_key(|it| it.waiting)
            .map(waiting)
            .unwrap_or_default();
        let marks = [
            (is_leaked(it), ", WITHOUT EXPIRY"),
            (is_on_a_minority(it), ", ON A MINORITY"),
        ];
        let marks = marks.into_iter().filter(|it| it.0).map(|it| it.1);
        vec![
            label(it),
            state + &marks.collect::<String>() + &not_on(it),
            time,
            format!("{} of {}", keys(it).count(), it.nodes().len()),
            waits,
        ]
    };
    show::table(
        &[first, "STATE", "LEFT", "NODES", "WAITING"],
        locks.iter().map(row),
    )
}

/// Whether a server has a key without expiry.
pub(crate) fn is_leaked(lock: &Inspection) -> bool {
    keys(lock).any(|it| it.left.is_none())
}

/// What the servers with a key store.
fn keys(lock: &Inspection) -> impl Iterator<Item = &StoredLock> {
    let stored = lock.nodes().iter().flat_map(|row| &row.stored);
    stored.filter(|it| it.key != StoredKey::Missing)
}

/// ", NOT ON n2": the servers that lack a held lock, or a reader of it. Empty for all others.
fn not_on(lock: &Inspection) -> String {
    let holds = |row: &InspectedNode| match row.stored.as_ref().ok()?.key {
        StoredKey::Missing => Some(0),
        StoredKey::Read { count, .. } => Some(count),
        _ => Some(1),
    };
    let most = lock.nodes().iter().filter_map(holds).max();
    let lacks = |row: &&InspectedNode| holds(row).is_some_and(|it| Some(it) < most);
    let nodes: Vec<_> = lock
        .nodes()
        .iter()
        .filter(lacks)
        .map(|row| row.node.to_string())
        .collect();
    match lock.state() {
        LockState::Held { .. } | LockState::Read { .. } if !nodes.is_empty() => {
            format!(", NOT ON {}", nodes.join(", "))
        }
        _ => String::new(),
    }
}

/// Held locks that a server lacks.
pub(crate) fn partly_held(listing: &Listing) -> Vec<String> {
    let locks = listing.locks().iter().map(|it| (label(it), not_on(it)));
    locks
        .filter(|(_, not_on)| !not_on.is_empty())
        .map(|(lock, not_on)| lock + &not_on)
        .collect()
}

/// Whether a server has a key although nobody holds the lock.
pub(crate) fn is_on_a_minority(lock: &Inspection) -> bool {
    let is_held = matches!(
        lock.state(),
        LockState::Held { .. } | LockState::Read { .. } | LockState::Unknown
    );
    !is_held && keys(lock).next().is_some()
}

/// See the schemas in the guide.
pub(crate) fn object(lock: &Inspection) -> Value {
    let node = |row: &InspectedNode| {
        let of = |mut value: Value| {
            value["node"] = row.node.to_string().into();
            value["address"] = (*row.address).into();
            value
        };
        match &row.stored {
            Err(failure) => of(json!({ "failure": failure.to_string() })),
            Ok(stored) => {
                let (key, holder, readers) = match &stored.key {
                    StoredKey::Missing => ("free", None, None),
                    StoredKey::Held { holder, .. } => ("held", holder.as_deref(), None),
                    StoredKey::Read { count, .. } => ("read", None, Some(*count)),
                    StoredKey::Foreign => ("foreign", None, None),
                    _ => ("other_type", None, None),
                };
                of(json!({
                    "lock": key, "holder": holder, "readers": readers,
                    "left": show::seconds(stored.left), "counter": stored.counter,
                    "waiting": stored.waiting, "waiting_for": show::seconds(stored.waiting_for),
                }))
            }
        }
    };
    let (state, holder, left) = match lock.state() {
        LockState::Free => ("free", None, None),
        LockState::Held { holder, left } => ("held", holder, left),
        LockState::Read { left, .. } => ("read", None, left),
        LockState::KeyInUse => ("key_in_use", None, None),
        LockState::NoMajority => ("no_majority", None, None),
        _ => ("unknown", None, None),
    };
    json!({
        "quorlock": 1, "name": name(lock), "slot": lock.slot(), "state": state,
        "holder": holder.as_deref(), "left": show::seconds(left),
        "without_expiry": is_leaked(lock), "minority": is_on_a_minority(lock),
        "nodes": lock.nodes().iter().map(node).collect::<Value>(),
    })
}

/// The rest of its quarantine, and the reason.
pub(crate) fn quarantine(row: &NodeCheck) -> Option<(Duration, QuarantineReason)> {
    match row.failure {
        Some(NodeFailure::Quarantined { left, why }) => Some((left, why)),
        _ => None,
    }
}

pub(crate) fn is_new(row: &NodeCheck) -> bool {
    quarantine(row).is_some_and(|(_, why)| why == QuarantineReason::New)
}

/// What ends the quarantine of new servers, if there are any.
pub(crate) fn cure(rows: &[NodeCheck]) -> &'static str {
    if rows.iter().any(is_new) {
        "; if new and never used: quorlock vouch"
    } else {
        ""
    }
}

/// Whether a server votes, for programs.
pub(crate) fn check(row: &NodeCheck) -> Value {
    json!({
        "node": row.node.to_string(), "address": &*row.address, "votes": row.failure.is_none(),
        "failure": row.failure.as_ref().map(ToString::to_string),
    })
}
