//! `quorlock status`: who holds a lock, and who waits.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use quorlock::LockManager;
use quorlock::inspection::{Inspection, LockState};
use serde_json::{Value, json};

use crate::exit::{Exit, Failed};
use crate::options::{NodeArgs, duration, switch};
use crate::{nodes, seen, show};

/// So often it is looked by default.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ends with 0 if a majority of the servers could be asked about each name, and 69 if not. With --watch it goes on until it is \
interrupted.

Examples:
  quorlock status nightly-report            who holds it, for how long, who waits
  quorlock status --watch deploy backup     again and again
  quorlock status --permits 5 mail-server   who has the permits of a semaphore")]
pub(crate) struct Status {
    /// The locks
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// The names are those of semaphores, with so many permits
    #[arg(long, value_name = "N", env = "QUORLOCK_PERMITS")]
    pub(crate) permits: Option<usize>,
    /// Looks again and again
    #[arg(long, env = "QUORLOCK_WATCH", value_parser = switch())]
    pub(crate) watch: bool,
    /// With --watch: so often [default: 1s]
    #[arg(long, value_name = "TIME", env = "QUORLOCK_EVERY", value_parser = duration)]
    pub(crate) every: Option<Duration>,
    /// Says it in JSON, an object in each line
    #[arg(long, env = "QUORLOCK_JSON", value_parser = switch())]
    pub(crate) json: bool,
}

/// Says it for each name. The status is 0 if a majority could be asked about all of them.
pub(crate) fn run(args: &NodeArgs, status: &Status) -> Result<ExitCode, Failed> {
    let locks = nodes::for_a_look(args)?.build()?;
    let redraws = status.watch && !status.json && io::stdout().is_terminal();
    loop {
        let (text, unknown) = look(&locks, status)?;
        show::say(&if redraws { redrawn(&text) } else { text })?;
        if !status.watch {
            return Ok(if unknown { Exit::NO_QUORUM.code() } else { ExitCode::SUCCESS });
        }
        thread::park_timeout(status.every.unwrap_or(EVERY));
    }
}

/// Everything about all names, and whether something of it is unknown.
fn look(locks: &LockManager, status: &Status) -> Result<(String, bool), Failed> {
    let (mut parts, mut unknown) = (Vec::new(), false);
    for name in &status.names {
        let all = seen::of(locks, name, status.permits)?;
        unknown |= all.iter().any(|it| it.state() == LockState::Unknown);
        parts.push(match (&all[..], status.permits, status.json) {
            ([one], None, true) => seen::object(one).to_string(),
            (slots, _, true) => of_permits(name, slots).to_string(),
            ([one], None, false) => seen::text(one),
            (slots, _, false) => permits(name, slots),
        });
    }
    Ok((parts.join("\n"), unknown))
}

fn held(slots: &[Inspection]) -> usize {
    slots.iter().filter(|it| matches!(it.state(), LockState::Held { .. })).count()
}

fn permits(name: &str, slots: &[Inspection]) -> String {
    let first = |row: &Inspection| row.slot().unwrap_or(0).to_string();
    let rows: Vec<_> = slots.iter().collect();
    let mut text = format!("{}: {} of {} permits are held\n", name.escape_debug(), held(slots), slots.len());
    text.push_str(&seen::lines("SLOT", &rows, first));
    // A node that could not be asked is the same for all slots.
    for node in slots.last().iter().flat_map(|it| it.nodes()) {
        if let Err(failure) = &node.stored {
            let _ = write!(text, "\n{} ({}): {failure}", node.node, node.address);
        }
    }
    text
}

fn of_permits(name: &str, slots: &[Inspection]) -> Value {
    let slots_as_objects: Vec<_> = slots.iter().map(seen::object).collect();
    json!({ "quorlock": 1, "name": name, "permits": slots.len(), "held": held(slots), "slots": slots_as_objects })
}

/// In place of what stood there before, without a moment in which nothing does.
fn redrawn(text: &str) -> String {
    format!("\x1b[H{}\x1b[K\x1b[J", text.replace('\n', "\x1b[K\n"))
}
