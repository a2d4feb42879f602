//! `quorlock doctor --wait`: waits until every server votes and has all held locks.

use std::mem::discriminant;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use quorlock::error::{NodeCheck, NodeFailure};
use serde_json::json;

use crate::exit::{Exit, Failed};
use crate::options::NodeArgs;
use crate::{nodes, report, show};

/// The longest wait, if the option has no time: a century.
pub(crate) const FOREVER: &str = "36500d";

/// The pause between two checks.
const PAUSE: Duration = Duration::from_secs(1);
/// Programs connect again within this time.
const CONNECTED_WITHIN: Duration = Duration::from_secs(2);

/// `whole`: waits for held locks as well.
pub(crate) fn run(
    args: &NodeArgs,
    wait: Duration,
    json: bool,
    whole: bool,
) -> Result<ExitCode, Failed> {
    let locks = nodes::without_locks(args)?.build()?;
    let began = now();
    let mut said = Vec::new();
    let mut partly_held: Option<Vec<String>> = None;
    loop {
        let rows = if args.no_quarantine {
            locks.check_nodes()
        } else {
            // Raises nothing. Starts the quarantine of unused servers as a lock would: it has no
            // end before.
            locks.admin().set_max_ttl(Duration::ZERO)
        };
        let missing: Vec<_> = rows.iter().filter(|row| row.failure.is_some()).collect();
        let patience = wait.saturating_sub(began.elapsed());
        if missing.is_empty() && !said.is_empty() {
            // Programs count a quarantine from their new connection.
            thread::park_timeout(CONNECTED_WITHIN);
        }
        if missing.is_empty() && whole {
            let listing = locks.list("*")?;
            let mut found = report::partly_held(&listing);
            if let Some(before) = &partly_held {
                // Others were just being taken or released.
                found.retain(|it| before.contains(it));
            }
            // What such a server lacks is not known.
            let missed = listing.missed().iter();
            found.extend(missed.map(|it| format!("the locks of {it}")));
            if partly_held.is_none() && !found.is_empty() {
                show::warn(&format!("waiting for {}", found.join("; ")));
            }
            partly_held = Some(found);
        }
        let lacking = partly_held.as_deref().unwrap_or_default();
        if missing.is_empty() && lacking.is_empty() || patience.is_zero() {
            return end(&rows, &missing, lacking, json);
        }
        let reasons = missing
            .iter()
            .map(|row| (row.node, row.failure.as_ref().map(discriminant)));
        let reasons: Vec<_> = reasons.collect();
        if reasons.iter().any(|reason| !said.contains(reason)) {
            let lacks: Vec<_> = missing.iter().map(|row| lack(row)).collect();
            let cure = report::cure(&rows);
            show::warn(&format!("waiting for {}{cure}", lacks.join(", ")));
        }
        said = reasons;
        thread::park_timeout(patience.min(PAUSE));
    }
}

fn end(
    rows: &[NodeCheck],
    missing: &[&NodeCheck],
    partly_held: &[String],
    json: bool,
) -> Result<ExitCode, Failed> {
    let votes = missing.is_empty();
    show::say(&if json {
        let nodes: Vec<_> = rows.iter().map(report::check).collect();
        json!({ "quorlock": 1, "votes": votes, "partly_held": partly_held, "nodes": nodes })
            .to_string()
    } else if let Some(lacking) = partly_held.first() {
        lacking.clone()
    } else if votes {
        format!("{} of {} servers vote", rows.len(), rows.len())
    } else {
        show::lines(missing)
    })?;
    Ok(Exit::NO_QUORUM.unless(votes && partly_held.is_empty()))
}

/// Why a server has no vote.
fn lack(row: &NodeCheck) -> String {
    let reason = match &row.failure {
        Some(NodeFailure::Quarantined { left, .. }) => {
            format!("no vote for {} more", show::time(*left))
        }
        failure => failure.iter().map(ToString::to_string).collect(),
    };
    format!("{} ({}): {reason}", row.node, row.address)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a deadline from the command line"
)]
fn now() -> Instant {
    Instant::now()
}
