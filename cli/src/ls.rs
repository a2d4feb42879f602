//! `quorlock ls`: the locks and permits that somebody holds.

use std::process::ExitCode;

use quorlock::error::NodeReport;
use quorlock::inspection::Listing;
use serde_json::{Value, json};

use crate::exit::{Exit, Failed};
use crate::options::{NodeArgs, switch};
use crate::{nodes, seen, show};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Looks through all keys of all servers, a part at a time, with pauses: no server works for it for more than a fifth of the \
time. Finds what quorlock has stored, so locks that only other Redlock clients use are not found: give their names to \
quorlock status. Marks keys without expiry, \
and keys on so few servers that nobody has the lock.

Ends with 0 if a majority of the servers was looked through, and 69 if not.

Examples:
  quorlock ls             all
  quorlock ls 'order:*'   of these names: * is anything, ? one byte")]
pub(crate) struct Ls {
    /// Of names that look like this
    #[arg(default_value = "*", value_name = "PATTERN")]
    pub(crate) pattern: String,
    /// Says it in JSON
    #[arg(long, env = "QUORLOCK_JSON", value_parser = switch())]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &NodeArgs, ls: &Ls) -> Result<ExitCode, Failed> {
    let locks = nodes::for_a_look(args)?.build()?;
    let nodes = locks.check_nodes().len();
    let listing = locks.list(&ls.pattern)?;
    let looked_through = nodes.saturating_sub(listing.missed().len());
    if ls.json {
        show::say(&object(&listing).to_string())?;
    } else {
        let rows: Vec<_> = listing.locks().iter().collect();
        if rows.is_empty() {
            show::say(&format!("no lock found on {looked_through} of {nodes} servers"))?;
        } else {
            show::say(&seen::lines("NAME", &rows, seen::label))?;
        }
        listing.missed().iter().for_each(|node| show::warn(&format!("not looked through: {node}")));
        if !listing.is_complete() && listing.missed().is_empty() {
            show::warn("there are more, give a PATTERN");
        }
    }
    Ok(if nodes / 2 < looked_through { ExitCode::SUCCESS } else { Exit::NO_QUORUM.code() })
}

fn object(listing: &Listing) -> Value {
    let missed = |it: &NodeReport| json!({ "node": it.node.to_string(), "address": &*it.address, "failure": it.answer.to_string() });
    json!({
        "quorlock": 1, "complete": listing.is_complete(),
        "locks": listing.locks().iter().map(seen::object).collect::<Vec<_>>(),
        "missed": listing.missed().iter().map(missed).collect::<Vec<_>>(),
    })
}
