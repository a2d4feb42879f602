//! `quorlock ls`: all held locks and permits.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::exit::{Exit, Failed};
use crate::options::NodeArgs;
use crate::{nodes, report, show};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Scans all keys of all servers in parts. The scan takes a fifth of a server's time at most. It \
finds locks of quorlock only. Marks: WITHOUT EXPIRY, a key that nothing removes; ON A MINORITY, \
keys on too few servers, so nobody holds the lock.

Exit status: 0 a majority of the servers was scanned; 69 no majority

Examples:
  quorlock ls             all locks
  quorlock ls 'order:*'   matching names; * is any text, ? one byte")]
pub(crate) struct Ls {
    /// Only names that match
    #[arg(default_value = "*")]
    pattern: String,
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &NodeArgs, ls: &Ls) -> Result<ExitCode, Failed> {
    let locks = nodes::without_locks(args)?.build()?;
    let nodes = locks.check_nodes().len();
    let listing = locks.list(&ls.pattern)?;
    let scanned = nodes.saturating_sub(listing.missed().len());
    let found = listing.locks();
    if ls.json {
        let locks = found.iter().map(report::object).collect::<Value>();
        let object = json!({
            "quorlock": 1, "complete": listing.is_complete(), "locks": locks,
        });
        show::say(&object.to_string())?;
    } else if found.is_empty() {
        show::say(&format!(
            "no lock found on {scanned} of {nodes} servers; locks of other clients: quorlock \
             status NAME"
        ))?;
    } else {
        show::say(&report::lines("NAME", found, report::label))?;
    }
    for node in listing.missed() {
        show::warn(&format!("not scanned: {node}"));
    }
    if !listing.is_complete() && listing.missed().is_empty() {
        show::warn("too many locks to list: give a PATTERN");
    }
    Ok(Exit::NO_QUORUM.unless(nodes / 2 < scanned))
}
