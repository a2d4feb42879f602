//! Findings about single servers.

use std::time::Duration;

use quorlock::error::{NodeAnswer, NodeCheck, NodeFailure, NodeFinding, NodeReport};

use crate::doctor::finding::Level::{Note, Unfit, Warning};
use crate::doctor::finding::{Finding, Level, at};
use crate::doctor::results::Results;
use crate::doctor::together;
use crate::{report, show};

/// All findings, the worst first.
pub(crate) fn of(results: &Results) -> Vec<Finding> {
    let failed = |check: &NodeCheck| Some(of_failure(check, check.failure.as_ref()?));
    let mut findings: Vec<Finding> = results.checks.iter().filter_map(failed).collect();
    for check in &results.checks {
        findings.extend(check.findings.iter().map(|it| weakness(check, it)));
    }
    let missed = results.listing.iter().flat_map(|it| it.missed());
    findings.extend(missed.filter_map(|row| not_listed(results, row)));
    findings.extend(together::of(results));
    findings.sort_by_key(|it| std::cmp::Reverse(it.level));
    findings
}

/// Why a node has no vote.
fn of_failure(check: &NodeCheck, failure: &NodeFailure) -> Finding {
    const DOWN: &str = "no vote; until this is corrected, one server less may fail";
    const NEVER: &str = "no vote until you correct this";
    let (level, what, why) = match failure {
        NodeFailure::Disqualified { finding } => {
            return Finding {
                level: Unfit,
                ..weakness(check, finding)
            };
        }
        NodeFailure::TimedOut | NodeFailure::Stalled => (Warning, "silent", DOWN),
        NodeFailure::Connect { .. } => (Warning, "down", DOWN),
        NodeFailure::Disconnected { .. } => (Warning, "disconnected", DOWN),
        NodeFailure::Loading => (Warning, "loading", DOWN),
        NodeFailure::Busy { .. } => (Warning, "busy", DOWN),
        NodeFailure::NoPrimary { .. } => (Warning, "no_primary", DOWN),
        NodeFailure::Tls(_) => (Unfit, "tls", NEVER),
        NodeFailure::Access { .. } => (Unfit, "access", NEVER),
        NodeFailure::Unsuitable { .. } => (Unfit, "unsuitable", NEVER),
        NodeFailure::WritesRefused { .. } => (Unfit, "writes_refused", NEVER),
        NodeFailure::SlotNotServed { .. } => (Unfit, "no_slots_served", NEVER),
        NodeFailure::Protocol { .. } => (Unfit, "no_redis", "this is not a Redis server"),
        NodeFailure::Replica => (Unfit, "replica", "it gets the data of its primary late"),
        NodeFailure::SameServer { .. } => (
            Unfit,
            "same_server",
            "both addresses have one vote together",
        ),
        NodeFailure::ClockBehind => (Unfit, "clock", "it rejects fencing tokens of this machine"),
        NodeFailure::Quarantined { .. } => (
            Warning,
            "quarantined",
            "it may have lost held locks, so its vote does not count until they have expired",
        ),
        NodeFailure::QuarantineDiffers { .. } => (
            Unfit,
            "quarantine_differs",
            "without quarantine a loss of data lets two hold a lock",
        ),
        NodeFailure::MaxTtl { .. } => (
            Unfit,
            "max_ttl",
            "it has no vote for locks that may outlive its quarantine",
        ),
        _ => (Warning, "refused", DOWN),
    };
    // In whole seconds, so that servers share a finding.
    let text = report::quarantine(check).map(|(left, why)| {
        let left = Duration::from_secs(left.as_secs().saturating_add(1));
        format!("no vote for another {}: {why}", show::time(left))
    });
    of_text(
        check,
        (level, what, why),
        &text.unwrap_or_else(|| failure.to_string()),
    )
}

/// The library's text has the cause, and behind a semicolon what to do.
fn of_text(
    check: &NodeCheck,
    (level, what, why): (Level, &'static str, &'static str),
    text: &str,
) -> Finding {
    let (seen, action) = text.rsplit_once("; ").unwrap_or_else(|| {
        let action = match what {
            "down" => "start the server, or correct its address",
            "no_redis" => "correct the address",
            "tls" => "correct the certificates or the address as above",
            _ => "check the server, its log and the network",
        };
        (text, action)
    });
    let ours = match action {
        _ if report::is_new(check) => ": quorlock vouch",
        _ if what == "quarantine_differs" => " (the option --no-quarantine)",
        "check user and password" | "give user and password" => {
            " (--user, --password-file, or the URLs in --nodes-file)"
        }
        _ => "",
    };
    Finding {
        level,
        what,
        node: at(check),
        seen: seen.to_owned(),
        why,
        action: action.to_owned() + ours,
    }
}

/// A weakness of a server that votes.
fn weakness(check: &NodeCheck, finding: &NodeFinding) -> Finding {
    const LAG: &str = "a promoted replica lacks the last writes, which may be locks";
    let judged = match finding {
        NodeFinding::WouldEvict { .. } => (
            Warning,
            "would_evict",
            "with a memory limit it may evict a held lock",
        ),
        NodeFinding::Promoted => (Warning, "promoted", LAG),
        NodeFinding::HasReplicas { .. } => (Warning, "has_replicas", LAG),
        NodeFinding::Unverifiable => (
            Warning,
            "unverifiable",
            "a restart or an eviction policy cannot be detected, and each new connection begins \
             with a quarantine",
        ),
        NodeFinding::OtherNodes { there, here } if there.abs_diff(*here) == 1 => (
            Note,
            "changing_nodes",
            "a change of servers is under way, and safe so far",
        ),
        NodeFinding::OtherNodes { .. } => (
            Warning,
            "other_nodes",
            "majorities of the two may share no server, so two programs can hold one lock",
        ),
        NodeFinding::ClockDiffers { .. } => (
            Warning,
            "clock_differs",
            "the waiting order and some fencing tokens use the clocks",
        ),
        NodeFinding::Proxied => (
            Warning,
            "proxied",
            "a failover behind it may lose the last locks",
        ),
        NodeFinding::NoNotices => (
            Warning,
            "no_notices",
            "waiting clients poll, and get a lock later",
        ),
        NodeFinding::NoReaders { .. } => (Note, "no_read_write_locks", "other locks work"),
        _ => (Warning, "other", "it weakens the locks"),
    };
    of_text(check, judged, &finding.to_string())
}

/// What keeps `ls` and the search for keys without expiry from a server that votes.
fn not_listed(results: &Results, row: &NodeReport) -> Option<Finding> {
    let NodeAnswer::Failed(failure @ NodeFailure::Access { .. }) = &row.answer else {
        return None;
    };
    let check = results.checks.iter().find(|check| check.node == row.node)?;
    check.failure.is_none().then(|| Finding {
        level: Note,
        what: "not_listed",
        why: "ls, and this search for keys without expiry, need it",
        ..of_failure(check, failure)
    })
}
