//! `quorlock vouch`: says that servers are new, so that they vote at once.

use std::process::ExitCode;

use quorlock::error::{NodeCheck, NodeFailure, QuarantineReason};
use serde_json::json;

use crate::exit::{Exit, Failed};
use crate::options::{NodeArgs, switch};
use crate::{ask, nodes, seen, show};

/// What is said before anybody is asked.
const RISK: &str = "\
These servers have not been used for locks, as far as anybody can see. A server that was restarted without its data, or that
replaces one that failed, looks the same: it may have forgotten locks that are held, and if it votes now, two can hold a lock.
So this is for servers that you have just set up, and that no program has used. In all other cases wait: they vote by
themselves when what they may have forgotten has expired.";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Servers that are new to everybody vote after the longest ttl. Who has just set them up, and knows that no program has used \
them yet, says so once with this command. Servers that are known to have been used stay as they are.

Ends with 0 if all of these servers vote, 1 if the answer was no, 69 if some have no vote.")]
pub(crate) struct Vouch {
    /// Does not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// Says it in JSON
    #[arg(long, env = "QUORLOCK_JSON", value_parser = switch())]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &NodeArgs, vouch: &Vouch) -> Result<ExitCode, Failed> {
    ask::check(vouch.yes)?;
    let locks = nodes::without_locks(args)?.builder.build()?;
    let before = locks.check_nodes();
    let is_new =
        |it: &NodeCheck| matches!(it.failure, Some(NodeFailure::Quarantined { why: QuarantineReason::New, .. }));
    let rows = if before.iter().any(is_new) {
        let new = before.iter().filter(|it| is_new(it));
        let lines: Vec<_> = new.map(|it| format!("{} ({})", it.node, it.address)).collect();
        ask::confirm(&format!("{}\n\n{RISK}", lines.join("\n")), "Are they new?", vouch.yes)?;
        locks.admin().vouch()
    } else {
        before
    };
    if vouch.json {
        let nodes: Vec<_> = rows.iter().map(seen::check).collect();
        show::say(&json!({ "quorlock": 1, "nodes": nodes }).to_string())?;
    } else {
        show::say(&rows.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
    }
    let all = rows.iter().all(|it| it.failure.is_none());
    Ok(if all { ExitCode::SUCCESS } else { Exit::NO_QUORUM.code() })
}
