//! `quorlock status`: who holds a lock, and who waits.

use std::process::ExitCode;

use quorlock::{InspectedNode, Inspection, LockManager, LockState, StoredKey};
use serde_json::{Value, json};

use crate::args::{Args, Status};
use crate::exit::{Exit, Failed};
use crate::{nodes, show};

/// Says it for each name. The status is 0 if a majority could be asked about all of them.
pub(crate) fn run(args: &Args, status: &Status) -> Result<ExitCode, Failed> {
    let locks = nodes::builder(&args.nodes, None)?.build()?;
    let mut unknown = false;
    for name in &status.names {
        let seen = look(&locks, name)?;
        unknown |= seen.state() == LockState::Unknown;
        show::say(&if status.json { object(&seen).to_string() } else { text(&seen) })?;
    }
    Ok(if unknown { Exit::NoQuorum.code() } else { ExitCode::SUCCESS })
}

fn look(locks: &LockManager, name: &str) -> Result<Inspection, Failed> {
    Ok(locks.inspect(name)?)
}

/// A line about the lock, and a table of the nodes.
fn text(seen: &Inspection) -> String {
    let mut table = show::table(&["NODE", "ADDRESS", "LOCK", "LEFT", "COUNTER", "WAITING"]);
    for row in seen.nodes() {
        table.add_row(cells(row));
    }
    format!("{}: {}\n{}", seen.name().escape_ascii(), seen.state(), table.trim_fmt())
}

fn cells(row: &InspectedNode) -> Vec<String> {
    let mut cells = vec![row.node.to_string(), row.address.to_string()];
    match &row.stored {
        Err(failure) => cells.push(failure.to_string()),
        Ok(stored) => {
            let left = stored.left.map_or_else(|| "no expiry".to_owned(), show::time);
            cells.push(match &stored.key {
                StoredKey::Missing => "free".to_owned(),
                StoredKey::Held { holder, .. } => holder.as_deref().unwrap_or("another client's").to_owned(),
                StoredKey::Read { count, .. } => format!("readers: {count}"),
                _ => "no lock's".to_owned(),
            });
            cells.push(if stored.key == StoredKey::Missing { String::new() } else { left });
            cells.push(stored.counter.map(|it| it.to_string()).unwrap_or_default());
            cells.push(match stored.waiting_for {
                Some(time) => format!("{}, {}", stored.waiting, show::time(time)),
                None => stored.waiting.to_string(),
            });
        }
    }
    cells
}

/// The same for programs: see the documented schema.
fn object(seen: &Inspection) -> Value {
    let seconds = |it: Option<std::time::Duration>| it.map(|it| it.as_secs_f64());
    let node = |row: &InspectedNode| {
        let of = |mut value: Value| {
            value["node"] = row.node.to_string().into();
            value["address"] = (*row.address).into();
            value
        };
        match &row.stored {
            Err(failure) => of(json!({ "failure": failure.to_string() })),
            Ok(stored) => {
                let (lock, holder, readers) = match &stored.key {
                    StoredKey::Missing => ("free", None, None),
                    StoredKey::Held { holder, .. } => ("held", holder.as_deref(), None),
                    StoredKey::Read { count, .. } => ("read", None, Some(*count)),
                    _ => ("foreign", None, None),
                };
                of(json!({
                    "lock": lock, "holder": holder, "readers": readers, "left": seconds(stored.left),
                    "counter": stored.counter, "waiting": stored.waiting, "waiting_for": seconds(stored.waiting_for),
                    "reserved": seconds(stored.reserved),
                }))
            }
        }
    };
    let (state, holder, left) = match seen.state() {
        LockState::Free => ("free", None, None),
        LockState::Held { holder, left } => ("held", holder, left),
        LockState::Read { left, .. } => ("read", None, left),
        LockState::NoMajority => ("no_majority", None, None),
        _ => ("unknown", None, None),
    };
    json!({
        "quorlock": 1, "name": seen.name().escape_ascii().to_string(), "state": state, "holder": holder.as_deref(),
        "left": seconds(left), "nodes": seen.nodes().iter().map(node).collect::<Vec<_>>(),
    })
}
