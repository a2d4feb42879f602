//! `quorlock status`: the holder of a lock and the waiting clients.

use std::fmt::Write;
use std::process::ExitCode;

use quorlock::inspection::{Inspection, LockState};
use serde_json::{Value, json};

use crate::exit::{Exit, Failed};
use crate::options::NodeArgs;
use crate::{nodes, report, show};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: 0 a majority of the servers answered for each name; 69 no majority

Examples:
  quorlock status nightly-report            holder, remaining time, waiting clients
  quorlock status --permits 5 mail-server   holders of the permits of a semaphore
  quorlock status --once nightly-report     last run of a job")]
pub(crate) struct Status {
    /// The locks
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// The names are semaphores with N permits
    #[arg(long, value_name = "N")]
    permits: Option<usize>,
    /// Show the last run of `quorlock once` instead of the lock
    #[arg(long, conflicts_with = "permits")]
    once: bool,
    /// Write JSON, an object in each line
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &NodeArgs, status: &Status) -> Result<ExitCode, Failed> {
    let locks = nodes::without_locks(args)?.build()?;
    let mut unknown = false;
    for name in &status.names {
        if status.once {
            let run = locks.once(name).last_run()?;
            show::say(&if status.json {
                report::run_object(name, run.as_ref()).to_string()
            } else {
                report::run(name, run.as_ref())
            })?;
            continue;
        }
        let all = report::of(&locks, name, status.permits)?;
        unknown |= all.iter().any(|it| it.state() == LockState::Unknown);
        show::say(&match (&all[..], status.permits, status.json) {
            ([one], None, true) => report::object(one).to_string(),
            (slots, _, true) => of_permits(name, slots).to_string(),
            ([one], None, false) => report::text(one),
            (slots, _, false) => permits(name, slots),
        })?;
    }
    Ok(Exit::NO_QUORUM.unless(!unknown))
}

fn held(slots: &[Inspection]) -> usize {
    slots
        .iter()
        .filter(|it| matches!(it.state(), LockState::Held { .. }))
        .count()
}

fn permits(name: &str, slots: &[Inspection]) -> String {
    let first = |row: &Inspection| row.slot().unwrap_or(0).to_string();
    let mut text = format!(
        "{}: {} of {} permits held\n",
        report::shown(name.as_bytes()),
        held(slots),
        slots.len()
    );
    text.push_str(&report::lines("SLOT", slots, first));
    // A failed server fails for all slots.
    for node in slots.last().iter().flat_map(|it| it.nodes()) {
        if let Err(failure) = &node.stored {
            let _ = write!(text, "\n{} ({}): {failure}", node.node, node.address);
        }
    }
    text
}

fn of_permits(name: &str, slots: &[Inspection]) -> Value {
    let objects: Vec<_> = slots.iter().map(report::object).collect();
    json!({
        "quorlock": 1, "name": name, "permits": slots.len(), "held": held(slots), "slots": objects,
    })
}
