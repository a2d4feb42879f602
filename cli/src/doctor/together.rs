//! Findings about all servers together.

use std::time::Duration;

use crate::doctor::finding::{Finding, Level, at};
use crate::doctor::results::{ROOM, Results};
use crate::{report, show};

pub(crate) fn of(results: &Results) -> Vec<Finding> {
    let mut findings = slow(results);
    findings.extend(numbers(results));
    findings.extend(
        [
            forgets(results),
            no_quarantine(results),
            no_expiry(results),
            partly_held(results),
        ]
        .into_iter()
        .flatten(),
    );
    findings
}

fn finding(
    level: Level,
    what: &'static str,
    seen: String,
    why: &'static str,
    action: impl Into<String>,
) -> Finding {
    Finding {
        level,
        what,
        node: None,
        seen,
        why,
        action: action.into(),
    }
}

/// Held locks that a server lacks.
fn partly_held(results: &Results) -> Option<Finding> {
    let partly_held = report::partly_held(results.listing.as_ref()?);
    (!partly_held.is_empty()).then(|| {
        finding(
            Level::Note,
            "partly_held",
            show::some(&partly_held),
            "without one more server, such a lock may be lost",
            "restart no server now: quorlock doctor --wait",
        )
    })
}

/// Servers too slow for the response timeout.
fn slow(results: &Results) -> Vec<Finding> {
    let Some(proposal) = results.proposal() else {
        return Vec::new();
    };
    let is_slow = |it: &Duration| results.response_timeout < it.saturating_mul(ROOM);
    let rows = results.checks.iter().zip(&results.slowest);
    let slow = rows.filter_map(|(check, slowest)| Some((check, (*slowest).filter(is_slow)?)));
    slow.map(|(check, slowest)| Finding {
        level: Level::Warning,
        what: "slow",
        node: at(check),
        seen: format!(
            "its slowest answer took {}, and the response timeout is {}",
            show::time(slowest),
            show::time(results.response_timeout)
        ),
        why: "a late answer counts as none, so locks fail or are lost",
        action: format!(
            "set --response-timeout {}ms, and the same in all programs",
            proposal.as_millis()
        ),
    })
    .collect()
}

/// Servers that lose data at a restart. Quarantine covers that.
fn forgets(results: &Results) -> Option<Finding> {
    let rows = results.checks.iter();
    let forgetful: Vec<_> = rows
        .filter(|it| it.append_only == Some(false))
        .map(|it| it.node.to_string())
        .collect();
    (!results.quarantine && !forgetful.is_empty()).then(|| {
        finding(
            Level::Note,
            "forgets",
            format!(
                "appendonly is off on {}: a restart loses locks and fencing counters",
                forgetful.join(", ")
            ),
            "without quarantine such a server votes at once, and new tokens rely on the clocks",
            "CONFIG SET appendonly yes, and the same in its configuration file",
        )
    })
}

fn no_quarantine(results: &Results) -> Option<Finding> {
    (!results.quarantine).then(|| {
        finding(
            Level::Warning,
            "no_quarantine",
            "--no-quarantine is set".to_owned(),
            "a restarted or emptied server may have lost a held lock and votes at once, so two can \
             hold the lock",
            "remove it in all programs, except for tests; for new servers run quorlock vouch",
        )
    })
}

/// Keys without expiry.
fn no_expiry(results: &Results) -> Option<Finding> {
    let locks = results.listing.iter().flat_map(|it| it.locks());
    let leaked: Vec<_> = locks
        .filter(|it| report::is_leaked(it))
        .map(report::label)
        .collect();
    (!leaked.is_empty()).then(|| {
        finding(
            Level::Warning,
            "no_expiry",
            format!("keys without expiry: {}", show::some(&leaked)),
            "nothing removes them, so these locks stay held after their program has ended",
            "find the program that sets keys without a ttl; then, for each key: quorlock release \
             NAME --force",
        )
    })
}

/// The number of servers and of votes.
fn numbers(results: &Results) -> Vec<Finding> {
    let nodes = results.checks.len();
    let voting = results
        .checks
        .iter()
        .filter(|it| it.failure.is_none())
        .count();
    let coming = results
        .checks
        .iter()
        .filter(|it| report::quarantine(it).is_some())
        .count();
    let needed = nodes / 2 + 1;
    let (level, what, action) = if needed <= voting + coming {
        (
            Level::Warning,
            "no_majority_yet",
            "wait: quorlock run waits by itself",
        )
    } else {
        (
            Level::Unfit,
            "no_majority",
            "correct the servers without a vote",
        )
    };
    let majority = (voting < needed).then(|| {
        let seen = format!("{voting} of {nodes} servers can vote, and a lock needs {needed}");
        finding(
            level,
            what,
            seen,
            "nobody can get a lock until more servers vote",
            action,
        )
    });
    let count = match nodes {
        1 => Some(finding(
            Level::Warning,
            "one_node",
            "one server only".to_owned(),
            "while it is down nobody can get a lock, and with its data all locks are lost",
            "use three or five servers",
        )),
        _ if nodes.is_multiple_of(2) => Some(finding(
            Level::Warning,
            "even_nodes",
            format!("{nodes} servers"),
            "an even number survives no more failures than one server less, and more servers can \
             fail",
            "use three or five servers",
        )),
        _ => None,
    };
    [majority, count].into_iter().flatten().collect()
}
