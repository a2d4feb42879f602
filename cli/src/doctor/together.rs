//! What was seen of all servers together.

use std::collections::BTreeSet;
use std::time::Duration;

use quorlock::error::{NodeCheck, NodeFailure, NodeFinding};

use crate::doctor::finding::{Finding, Level, at};
use crate::doctor::seen::{ROOM, Seen, TIMEOUTS_IN_A_TTL};
use crate::{seen as locks, show};

/// So many names are said at most.
const NAMES: usize = 5;
/// What the library allows.
const TTLS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3_600);
/// A smaller difference is the margin of the same ttl, or rounding.
const SAME_TTL: f64 = 1.05;

pub(crate) fn of(seen: &Seen) -> Vec<Finding> {
    let mut findings = slow(seen);
    findings.extend(numbers(seen));
    findings.extend(
        [forgets(seen), no_quarantine(seen), longer_ttl(seen), own_clock(seen), no_expiry(seen)].into_iter().flatten(),
    );
    findings.extend(plan(seen));
    findings
}

fn finding(level: Level, what: &'static str, seen: String, why: &'static str, action: impl Into<String>) -> Finding {
    Finding { level, what, node: None, seen, why, action: action.into() }
}

/// Some nodes, by name.
fn names<'a>(nodes: impl Iterator<Item = &'a NodeCheck>) -> String {
    nodes.map(|it| it.node.to_string()).collect::<Vec<_>>().join(", ")
}

/// Nodes whose answers take too long for the response timeout.
fn slow(seen: &Seen) -> Vec<Finding> {
    let Some(proposal) = seen.proposal() else { return Vec::new() };
    let is_slow = |it: &Duration| seen.response_timeout < it.saturating_mul(ROOM);
    let rows = seen.checks.iter().zip(&seen.slowest);
    let slow = rows.filter_map(|(check, slowest)| Some((check, (*slowest).filter(is_slow)?)));
    slow.map(|(check, slowest)| Finding {
        level: Level::Warning,
        what: "slow",
        node: at(check),
        seen: format!(
            "its slowest answer took {}, and the response timeout is {}",
            millis(slowest),
            millis(seen.response_timeout)
        ),
        why: "an answer that comes later than that counts as none, and locks are not to be had or are lost",
        action: format!("--response-timeout {}ms, and the same in all programs", proposal.as_millis()),
    })
    .collect()
}

/// Servers that keep nothing, or little, over a restart.
fn forgets(seen: &Seen) -> Option<Finding> {
    let forgetful = || seen.checks.iter().filter(|it| it.append_only == Some(false));
    forgetful().next()?;
    Some(finding(
        Level::Note,
        "forgets",
        format!("appendonly is off on {}: a restart brings back a snapshot at best", names(forgetful())),
        "after a restart it has forgotten who holds what, and its fencing counters: it has no vote until the locks have \
         expired, and new tokens rest on the clocks",
        "CONFIG SET appendonly yes, and the same in its configuration file; what is lost in spite of that is what \
         quarantine is for",
    ))
}

fn no_quarantine(seen: &Seen) -> Option<Finding> {
    (!seen.quarantine).then(|| {
        finding(
            Level::Warning,
            "no_quarantine",
            "--no-quarantine is set".to_owned(),
            "a server that was restarted, or emptied, votes at once, although it may have forgotten a lock that is held: two \
             can hold it then",
            "leave it out, in all programs, where anything is to be protected; for new servers: quorlock vouch",
        )
    })
}

/// Programs that need a longer quarantine than ours.
fn longer_ttl(seen: &Seen) -> Option<Finding> {
    let (max_ttl, is_given) = seen.max_ttl;
    let is_longer = |it: &Duration| max_ttl.mul_f64(SAME_TTL) < *it;
    let longer = || seen.checks.iter().filter(|it| it.longest_quarantine.as_ref().is_some_and(is_longer));
    let longest = longer().filter_map(|it| it.longest_quarantine).max()?;
    Some(finding(
        if is_given { Level::Warning } else { Level::Note },
        "longer_ttl",
        format!(
            "programs with a max_ttl of about {} use {}, or did yesterday; {} {}",
            show::time(longest.mul_f64(0.99)),
            names(longer()),
            if is_given { "--max-ttl is" } else { "that of quorlock run is" },
            show::time(max_ttl)
        ),
        "a server that was restarted has no vote for so long, for all programs; and if all servers lose their data at once, \
         programs that know of a shorter one let the next holder in too early",
        "give all programs the same max_ttl: the longest ttl that any of them uses",
    ))
}

/// If most clocks differ from ours in the same direction, it is ours that is wrong.
fn own_clock(seen: &Seen) -> Option<Finding> {
    let offset = |it: &NodeFinding| match it {
        NodeFinding::ClockDiffers { by, ahead } => Some((*ahead, *by)),
        _ => None,
    };
    let asked = seen.checks.iter().filter(|it| it.round_trip.is_some()).count();
    let offsets: Vec<_> = seen.checks.iter().flat_map(|it| it.findings.iter().filter_map(offset)).collect();
    let side = |ahead| offsets.iter().filter(|it| it.0 == ahead).map(|it| it.1).collect::<Vec<_>>();
    let (ahead, differ) = [true, false].map(|it| (it, side(it))).into_iter().find(|(_, it)| asked < 2 * it.len())?;
    if differ.len() < 2 {
        return None;
    }
    let spread = differ.iter().max()?.saturating_sub(*differ.iter().min()?);
    Some(finding(
        Level::Warning,
        "own_clock",
        format!(
            "the clocks of {} of {asked} servers are {} the one of this machine, and {} apart from each other",
            differ.len(),
            if ahead { "ahead of" } else { "behind" },
            show::time(spread)
        ),
        "it seems to be this machine's clock that is wrong, and what it writes is refused by servers whose clocks are right",
        "run a time daemon on this machine, and look whether it works: chronyc tracking, or timedatectl",
    ))
}

/// Keys that nothing ever removes.
fn no_expiry(seen: &Seen) -> Option<Finding> {
    let leaked: Vec<_> = seen.listing.iter().flat_map(|it| it.locks()).filter(|it| locks::is_leaked(it)).collect();
    let labels: Vec<_> = leaked.iter().map(|it| locks::label(it)).collect();
    (!leaked.is_empty()).then(|| {
        finding(
            Level::Warning,
            "no_expiry",
            format!("keys without expiry: {}", show::some(&labels, NAMES)),
            "nothing ever removes them, so nobody else gets these locks once their program has ended",
            "find the program that sets keys without a time to live, and then, for each: quorlock release NAME --force --leaked",
        )
    })
}

/// Whether these servers are fit for the ttl that is planned.
fn plan(seen: &Seen) -> Vec<Finding> {
    let Some(plan) = seen.plan() else { return Vec::new() };
    let needed = seen.response_timeout.saturating_mul(TIMEOUTS_IN_A_TTL);
    let mut findings = Vec::new();
    if !TTLS.contains(&plan.ttl) {
        findings.push(finding(
            Level::Unfit,
            "ttl_not_allowed",
            format!("a ttl of {} is planned", show::time(plan.ttl)),
            "it is refused: allowed are 100 ms to an hour",
            "choose one between; a lock is extended while it is held, however short its ttl is",
        ));
    } else if plan.ttl < needed {
        findings.push(finding(
            Level::Unfit,
            "ttl_too_short",
            format!("a ttl of {} is planned, and the response timeout is {}", show::time(plan.ttl), millis(seen.response_timeout)),
            "it is refused: extensions would have no time for a second try, so a ttl has four response timeouts at least",
            format!("--ttl {}ms, or a shorter --response-timeout", needed.as_millis()),
        ));
    }
    if let Some((shortest, timeout)) = plan.shortest.filter(|(it, _)| plan.ttl < *it) {
        findings.push(finding(
            Level::Warning,
            "ttl_tight",
            format!("a ttl of {} is planned, and the slowest answer took {}", show::time(plan.ttl), slowest(seen)),
            "answers that take a few times as long would cost a lock that is held",
            format!(
                "--ttl {}ms with --response-timeout {}ms, or servers that are nearer",
                shortest.as_millis(),
                timeout.as_millis()
            ),
        ));
    }
    let known = seen.checks.iter().filter_map(|it| it.longest_quarantine).max();
    if let Some(known) = known.filter(|it| it.mul_f64(SAME_TTL) < plan.ttl) {
        findings.push(finding(
            Level::Note,
            "longer_quarantine",
            format!(
                "a ttl of {} is planned, and the longest that these servers know of is {}",
                show::time(plan.ttl),
                show::time(known)
            ),
            "with it every server that was restarted has no vote for so long, for all programs",
            format!("set max_ttl to {} in all programs", show::time(plan.ttl)),
        ));
    }
    findings
}

fn slowest(seen: &Seen) -> String {
    seen.slowest.iter().flatten().max().map_or_else(String::new, |it| millis(*it))
}

/// A short time.
pub(crate) fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1_000.0)
}

/// How many there are, and which.
fn numbers(seen: &Seen) -> Vec<Finding> {
    let nodes = seen.checks.len();
    let voting = seen.votes().filter(|votes| *votes).count();
    let coming = seen.checks.iter().filter(|it| matches!(it.failure, Some(NodeFailure::Quarantined { .. }))).count();
    let needed = nodes / 2 + 1;
    let majority = if needed <= voting {
        None
    } else if needed <= voting + coming {
        Some(finding(
            Level::Warning,
            "no_majority_yet",
            format!("{voting} of {nodes} servers can vote now, and a lock needs {needed}"),
            "no lock is to be had until more of them vote",
            "wait, as above; lock() does so by itself",
        ))
    } else {
        Some(finding(
            Level::Unfit,
            "no_majority",
            format!("{voting} of {nodes} servers can vote, and a lock needs {needed}"),
            "no lock is to be had",
            "see what is said of those that do not vote",
        ))
    };
    let count = match nodes {
        1 => Some(finding(
            Level::Warning,
            "one_node",
            "one server only".to_owned(),
            "no lock is to be had while it is down, and all are forgotten with it",
            "use three, or five",
        )),
        _ if nodes.is_multiple_of(2) => Some(finding(
            Level::Warning,
            "even_nodes",
            format!("{nodes} servers"),
            "an even number survives no more failures than one less, and has one more to fail",
            "use three, or five",
        )),
        _ => None,
    };
    let versions: BTreeSet<_> = seen.checks.iter().filter_map(|it| it.version.as_deref()).collect();
    let mixed = (1 < versions.len()).then(|| versions.into_iter().collect::<Vec<_>>().join(", "));
    let mixed = mixed.map(|it| {
        finding(Level::Note, "versions", it, "nothing is wrong with different versions", "nothing, if it is meant")
    });
    [majority, count, mixed].into_iter().flatten().collect()
}
