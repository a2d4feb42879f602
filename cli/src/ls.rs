//! `quorlock ls`: all held locks and permits.

use std::process::ExitCode;

use quorlock::error::NodeReport;
use quorlock::inspection::Listing;
use serde_json::{Value, json};

use crate::exit::{Exit, Failed};
use crate::options::NodeArgs;
use crate::{nodes, seen, show};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Scans all keys of all servers in parts. The scan takes a fifth of a server's time at most. It finds locks of quorlock only. For \
locks of other Redlock clients, run `quorlock status NAME`. Marks: WITHOUT EXPIRY, a key that nothing removes; ON A MINORITY, \
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
    if ls.json {
        show::say(&object(&listing).to_string())?;
    } else {
        let rows: Vec<_> = listing.locks().iter().collect();
        if rows.is_empty() {
            show::say(&format!(
                "no lock found on {scanned} of {nodes} servers; locks of other clients: quorlock status NAME"
            ))?;
        } else {
            show::say(&seen::lines("NAME", &rows, seen::label))?;
        }
        listing
            .missed()
            .iter()
            .for_each(|node| show::warn(&format!("not scanned: {node}")));
        if !listing.is_complete() && listing.missed().is_empty() {
            show::warn("too many locks to list: give a PATTERN");
        }
    }
    Ok(Exit::NO_QUORUM.unless(nodes / 2 < scanned))
}

fn object(listing: &Listing) -> Value {
    let missed = |it: &NodeReport| json!({ "node": it.node.to_string(), "address": &*it.address, "failure": it.answer.to_string() });
    json!({
        "quorlock": 1, "complete": listing.is_complete(),
        "locks": listing.locks().iter().map(seen::object).collect::<Value>(),
        "missed": listing.missed().iter().map(missed).collect::<Value>(),
    })
}
