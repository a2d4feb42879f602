//! `quorlock doctor --wait`: waits until every server votes.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use quorlock::error::{NodeCheck, NodeFailure};
use serde_json::json;

use crate::exit::{Exit, Failed};
use crate::options::{NodeArgs, duration};
use crate::{nodes, seen, show};

/// The value of the option without a time.
pub(crate) const FOREVER: &str = "forever";

/// The limits of the pause between two checks.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(10);
/// Programs connect again within this time.
const CONNECTED_WITHIN: Duration = Duration::from_secs(2);

/// The longest wait; none: without an end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait(Option<Duration>);

pub(crate) fn parse(text: &str) -> Result<Wait, String> {
    if text == FOREVER {
        Ok(Wait(None))
    } else {
        duration(text).map(|it| Wait(Some(it)))
    }
}

pub(crate) fn run(args: &NodeArgs, wait: Wait, json: bool) -> Result<ExitCode, Failed> {
    let settings = nodes::for_a_plan(args, None)?;
    let (began, mut said, mut last) = (now(), String::new(), Vec::new());
    loop {
        // A new manager for each check has the view of a program that starts now. A manager that stays counts a quarantine from
        // its first check, but the quarantine of an unused server begins with the first lock.
        let rows = settings.build()?.check_nodes();
        let missing: Vec<_> = rows.iter().filter(|row| row.failure.is_some()).collect();
        let patience = wait
            .0
            .map_or(LONGEST, |it| it.saturating_sub(began.elapsed()));
        if missing.is_empty() && !said.is_empty() {
            // Programs count a quarantine from their new connection.
            thread::park_timeout(CONNECTED_WITHIN);
        }
        if missing.is_empty() || patience.is_zero() {
            return end(&rows, &missing, json);
        }
        let quarantines: Vec<_> = rows.iter().map(quarantine).collect();
        let lacks = |shows_time| {
            let lack = |row: &&NodeCheck| {
                lack(
                    row,
                    last.get(row.node.index()).copied().flatten(),
                    shows_time,
                )
            };
            missing.iter().map(lack).collect::<Vec<_>>().join("; ")
        };
        let changed = lacks(false);
        if said != changed {
            show::warn(&format!("waiting for {}", lacks(true)));
            said = changed;
        }
        let longest = quarantines
            .iter()
            .flatten()
            .max()
            .copied()
            .unwrap_or(LONGEST);
        last = quarantines;
        thread::park_timeout(longest.clamp(SHORTEST, LONGEST).min(patience));
    }
}

fn end(rows: &[NodeCheck], missing: &[&NodeCheck], json: bool) -> Result<ExitCode, Failed> {
    let votes = missing.is_empty();
    show::say(&if json {
        let nodes: Vec<_> = rows.iter().map(seen::check).collect();
        json!({ "quorlock": 1, "votes": votes, "nodes": nodes }).to_string()
    } else if votes {
        format!("{} of {} servers vote", rows.len(), rows.len())
    } else {
        seen::votes(missing.iter().copied())
    })?;
    Ok(if votes {
        ExitCode::SUCCESS
    } else {
        Exit::NO_QUORUM.code()
    })
}

fn quarantine(row: &NodeCheck) -> Option<Duration> {
    match row.failure {
        Some(NodeFailure::Quarantined { left, .. }) => Some(left),
        _ => None,
    }
}

/// Why a server has no vote. `last`: its quarantine at the check before. Without times, the text changes with the reason alone.
fn lack(row: &NodeCheck, last: Option<Duration>, shows_time: bool) -> String {
    let reason = match (quarantine(row), &row.failure) {
        (Some(left), _) => {
            let time = if shows_time {
                show::time(left)
            } else {
                String::new()
            };
            // A running quarantine gets shorter.
            let is_unused = last.is_some_and(|last| last <= left);
            format!(
                "quarantined for {time} {}",
                if is_unused {
                    "after the next use of a lock"
                } else {
                    "more"
                }
            )
        }
        (None, failure) => failure
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_has_a_time_or_no_end() {
        assert_eq!(parse("2m").unwrap().0, Some(Duration::from_secs(120)));
        assert_eq!(parse(FOREVER).unwrap().0, None);
        assert!(parse("").is_err() && parse("soon").is_err());
    }
}
