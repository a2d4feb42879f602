//! Findings about single servers.

use std::time::Duration;

use quorlock::error::{
    NodeAnswer, NodeCheck, NodeFailure, NodeFinding, NodeReport, QuarantineReason,
};

use crate::doctor::finding::{Finding, Level, at};
use crate::doctor::seen::Seen;
use crate::doctor::together;
use crate::show;

/// All findings, the worst first.
pub(crate) fn of(seen: &Seen) -> Vec<Finding> {
    let mut findings: Vec<Finding> = seen.checks.iter().filter_map(failure).collect();
    let duplicated = |it: &NodeFinding| matches!(it, NodeFinding::SameServer { .. });
    for check in &seen.checks {
        // The other address of the same server has this finding as a failure.
        findings.extend(
            check
                .findings
                .iter()
                .filter(|it| !duplicated(it))
                .map(|it| weakness(check, it)),
        );
    }
    let missed = seen.listing.iter().flat_map(|it| it.missed());
    findings.extend(missed.filter_map(|row| not_listed(seen, row)));
    findings.extend(together::of(seen));
    findings.sort_by_key(|it| std::cmp::Reverse(it.level));
    findings
}

/// Why a node has no vote.
fn failure(check: &NodeCheck) -> Option<Finding> {
    check.failure.as_ref().map(|it| of_failure(check, it))
}

fn of_failure(check: &NodeCheck, failure: &NodeFailure) -> Finding {
    if let NodeFailure::Disqualified { finding } = failure {
        return Finding {
            level: Level::Unfit,
            ..weakness(check, finding)
        };
    }
    let (level, what, why, action) = advice(failure);
    let seen = match failure {
        // In whole seconds, so that servers share a finding.
        NodeFailure::Quarantined { left, why } => {
            let (why, left) = (
                why.to_string(),
                Duration::from_secs(left.as_secs().saturating_add(1)),
            );
            format!(
                "no vote for another {}: {}",
                show::time(left),
                split(&why).0
            )
        }
        _ => split(&failure.to_string()).0.to_owned(),
    };
    Finding {
        level,
        what,
        node: at(check),
        seen,
        why,
        action,
    }
}

/// What is wrong, and what to do, which stands behind a semicolon.
fn split(failure: &str) -> (&str, &str) {
    failure.rsplit_once("; ").unwrap_or((failure, ""))
}

const NOEVICTION: &str =
    "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file";
const LAG: &str = "a promoted replica lacks the last writes, which may be locks";

fn advice(failure: &NodeFailure) -> (Level, &'static str, &'static str, String) {
    use Level::{Unfit, Warning};
    const DOWN: &str = "no vote; until this is corrected, one server less may fail";
    const NEVER: &str = "no vote until you correct this";
    let (level, what, why, action) = match failure {
        NodeFailure::TimedOut | NodeFailure::Stalled => {
            (Warning, "silent", DOWN, "check its load and the network")
        }
        NodeFailure::Connect { .. } => (
            Warning,
            "down",
            DOWN,
            "start the server, or correct its address",
        ),
        NodeFailure::Disconnected { .. } => (
            Warning,
            "disconnected",
            DOWN,
            "check its log and the network",
        ),
        NodeFailure::Tls(_) => (
            Unfit,
            "tls",
            NEVER,
            "correct the certificates or the address as above",
        ),
        NodeFailure::Access { .. } => (Unfit, "access", NEVER, ""),
        NodeFailure::Unsuitable { .. } => (Unfit, "unsuitable", NEVER, ""),
        NodeFailure::Replica => (Unfit, "replica", "it gets the data of its primary late", ""),
        NodeFailure::Loading => (Warning, "loading", DOWN, "wait until it has read its data"),
        NodeFailure::WritesRefused { .. } => (Unfit, "writes_refused", NEVER, ""),
        NodeFailure::Busy { .. } => (Warning, "busy", DOWN, ""),
        NodeFailure::Quarantined { why, .. } => (
            Warning,
            "quarantined",
            "it may have lost held locks, so its vote does not count until they have expired",
            match why {
                QuarantineReason::New => {
                    "quorlock doctor --wait; if you have just set it up: quorlock vouch"
                }
                _ => "",
            },
        ),
        NodeFailure::QuarantineDiffers { on_server } => {
            let here = "remove --no-quarantine here, or use dedicated servers";
            let there =
                "empty it while no program uses it; for a test server, pass --no-quarantine here";
            let action = if *on_server { here } else { there };
            (
                Unfit,
                "quarantine_differs",
                "without quarantine a loss of data lets two hold a lock",
                action,
            )
        }
        NodeFailure::MaxTtl { .. } => (
            Unfit,
            "max_ttl",
            "it has no vote for locks that may outlive its quarantine",
            "",
        ),
        NodeFailure::ClockBehind => (
            Unfit,
            "clock",
            "it rejects fencing tokens of this machine",
            "correct the wrong clock",
        ),
        NodeFailure::NoPrimary { .. } => (
            Warning,
            "no_primary",
            DOWN,
            "wait for the end of a failover; then start what does not answer",
        ),
        NodeFailure::SlotNotServed { .. } => (
            Unfit,
            "no_slots_served",
            NEVER,
            "start the missing primaries, or run redis-cli --cluster fix",
        ),
        NodeFailure::SameServer { .. } => (
            Unfit,
            "same_server",
            "both addresses have one vote together",
            "give each server once",
        ),
        NodeFailure::Protocol { .. } => (
            Unfit,
            "no_redis",
            "this is not a Redis server",
            "correct the address",
        ),
        _ => (Warning, "refused", DOWN, "check the message above"),
    };
    if !action.is_empty() {
        return (level, what, why, action.to_owned());
    }
    let text = failure.to_string();
    let action = split(&text).1;
    let options = if text.ends_with("user and password") {
        " (--user, --password-file, or the URLs in --nodes-file)"
    } else {
        ""
    };
    (level, what, why, format!("{action}{options}"))
}

/// A weakness of a server that votes.
fn weakness(check: &NodeCheck, finding: &NodeFinding) -> Finding {
    let is_changing =
        matches!(finding, NodeFinding::OtherNodes { there, here } if there.abs_diff(*here) == 1);
    let (what, why, action) = match finding {
        NodeFinding::WouldEvict { .. } => (
            "would_evict",
            "with a memory limit it may evict a held lock",
            NOEVICTION,
        ),
        NodeFinding::Promoted => (
            "promoted",
            LAG,
            "give the address of a server without failover",
        ),
        NodeFinding::HasReplicas { .. } => (
            "has_replicas",
            LAG,
            "make sure none is ever promoted, or remove them",
        ),
        NodeFinding::Unverifiable => (
            "unverifiable",
            "a restart or an eviction policy cannot be detected, and each new connection begins with a quarantine",
            "permit INFO",
        ),
        NodeFinding::OtherNodes { .. } if is_changing => (
            "changing_nodes",
            "a change of servers is under way, and safe so far",
            "finish it on all programs before the next one",
        ),
        NodeFinding::OtherNodes { .. } => (
            "other_nodes",
            "majorities of the two may share no server, so two programs can hold one lock",
            "give all programs the same servers; if you have stopped all: redis-cli DEL quorlock:record",
        ),
        NodeFinding::ClockDiffers { .. } => (
            "clock_differs",
            "the waiting order and some fencing tokens use the clocks",
            "run a time daemon, on this machine too: chronyc tracking",
        ),
        NodeFinding::Proxied => (
            "proxied",
            "a failover behind it may lose the last locks",
            "give the server itself, or allow for work that runs twice",
        ),
        NodeFinding::NoNotices => (
            "no_notices",
            "waiting clients poll, and get a lock later",
            "permit HELLO 3, or use Redis 6.2 or newer",
        ),
        NodeFinding::NoReaders { .. } => (
            "no_read_write_locks",
            "other locks work",
            "if you use them, permit what the guide lists: quorlock::guide::redis_access",
        ),
        _ => ("other", "it weakens the locks", "check the message above"),
    };
    let level = if is_changing || matches!(finding, NodeFinding::NoReaders { .. }) {
        Level::Note
    } else {
        Level::Warning
    };
    Finding {
        level,
        what,
        node: at(check),
        seen: finding.to_string(),
        why,
        action: action.to_owned(),
    }
}

/// What keeps `ls` and the search for keys without expiry from a server that votes.
fn not_listed(seen: &Seen, row: &NodeReport) -> Option<Finding> {
    let NodeAnswer::Failed(failure @ NodeFailure::Access { .. }) = &row.answer else {
        return None;
    };
    let check = seen.checks.iter().find(|check| check.node == row.node)?;
    check.failure.is_none().then(|| Finding {
        level: Level::Note,
        what: "not_listed",
        why: "ls, and this search for keys without expiry, need it",
        ..of_failure(check, failure)
    })
}
