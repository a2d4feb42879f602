//! What was seen, why it matters, and what to do.

use quorlock::error::{MemberAnswer, MemberReport, NodeAccess, NodeCheck, NodeFailure, NodeFinding, QuarantineReason};

use crate::doctor::finding::{Finding, Level, at};
use crate::doctor::seen::{FOR_LOOKING, FOR_READERS, FOR_WAITING, Seen, needed};
use crate::doctor::together;
use crate::show;

/// Everything, the worst first.
pub(crate) fn of(seen: &Seen) -> Vec<Finding> {
    let mut findings: Vec<Finding> = seen.checks.iter().filter_map(failure).collect();
    let duplicated = |it: &NodeFinding| matches!(it, NodeFinding::SameServer { .. });
    for check in &seen.checks {
        // Of two addresses of one server the other one says it.
        findings.extend(check.findings.iter().filter(|it| !duplicated(it)).map(|it| weakness(check, it)));
    }
    findings.extend(seen.access.iter().flat_map(access));
    findings.extend(together::of(seen));
    findings.sort_by_key(|it| std::cmp::Reverse(it.level));
    findings
}

/// Why a node has no vote.
fn failure(check: &NodeCheck) -> Option<Finding> {
    check.failure.as_ref().map(|it| of_failure(check, it))
}

fn of_failure(check: &NodeCheck, failure: &NodeFailure) -> Finding {
    let (level, what, why, action) = advice(failure);
    let seen = match failure {
        // What to do is said below.
        NodeFailure::Quarantined { left, why } => {
            let why = why.to_string();
            format!("no vote for another {}: {}", show::time(*left), why.split(';').next().unwrap_or_default())
        }
        _ => failure.to_string(),
    };
    let members = match failure {
        NodeFailure::NoMaster { said } | NodeFailure::SentinelsUnreachable { said, .. } => of_members(said),
        _ => Vec::new(),
    };
    let level = members.iter().map(|it| it.0).fold(level, Level::max);
    let actions: Vec<_> = members.into_iter().map(|it| it.1).collect();
    let action = if actions.is_empty() { action.to_owned() } else { actions.join("; ") };
    Finding { level, what, node: at(check), seen, why, action }
}

/// What to do about those servers or sentinels of a node that could not be asked.
fn of_members(said: &[MemberReport]) -> Vec<(Level, String)> {
    let advice = |it: &MemberReport| match &it.answer {
        MemberAnswer::Failed(failure) => {
            let (level, _, _, action) = advice(failure);
            Some((level, format!("{}: {action}", it.address)))
        }
        _ => None,
    };
    said.iter().filter_map(advice).collect()
}

type Advice = (Level, &'static str, &'static str, &'static str);

fn advice(failure: &NodeFailure) -> Advice {
    use Level::{Unfit, Warning};
    const DOWN: &str = "it has no vote, so one failure less of the others is survived";
    const NEVER: &str = "it has no vote, and will have none until somebody changes it";
    match failure {
        NodeFailure::TimedOut | NodeFailure::Stalled => {
            (Warning, "silent", DOWN, "look at its load and at the network")
        }
        NodeFailure::Connect { .. } => (Warning, "down", DOWN, "start it, or correct its address"),
        NodeFailure::Disconnected { .. } => (Warning, "disconnected", DOWN, "look at its log and at the network"),
        NodeFailure::Tls(_) => (Unfit, "tls", NEVER, "see what it says of the certificates and the address"),
        NodeFailure::WrongPassword => (
            Unfit,
            "wrong_password",
            NEVER,
            "give the right user and password: --user and --password-file, or in the URL within --nodes-file",
        ),
        NodeFailure::NoPassword => (
            Unfit,
            "no_password",
            NEVER,
            "give its password: --user and --password-file, or in the URL within --nodes-file",
        ),
        NodeFailure::ProtectedMode => (Unfit, "protected_mode", NEVER, "set a password there, and give it to us"),
        NodeFailure::NoPermission { .. } => {
            (Unfit, "no_permission", NEVER, "give the user what the guide's ACL line has")
        }
        NodeFailure::BadDatabase => (Unfit, "bad_database", NEVER, "correct the number behind the URL's slash"),
        NodeFailure::Loading => (Warning, "loading", DOWN, "wait until it has read its data"),
        NodeFailure::TooOld { .. } => (Unfit, "too_old", NEVER, "install Redis 6.2 or newer, or Valkey"),
        NodeFailure::NotAtomic { .. } => {
            (Unfit, "not_atomic", "two clients may both be granted a lock there", "use Redis or Valkey for locks")
        }
        NodeFailure::MultiMaster => (
            Unfit,
            "multi_master",
            "another server grants the same locks, and what both have is merged later",
            "take active-replica and multi-master out of its configuration, or use servers of their own for locks",
        ),
        NodeFailure::Replica => (
            Unfit,
            "replica",
            "it knows only what its master has told it, and that later",
            "give the address of a master that has no replica to be promoted",
        ),
        NodeFailure::Sentinel => (Unfit, "sentinel", "it stores nothing", "give the addresses of independent masters"),
        NodeFailure::Quarantined { why, .. } => (
            Warning,
            "quarantined",
            "it may have forgotten locks that are held, so its vote does not count until they have expired",
            match why {
                QuarantineReason::New => {
                    "wait for so long; or, if you have just set it up, say so once: quorlock vouch"
                }
                QuarantineReason::ClockStep => "wait for so long, and let its time daemon slew the clock",
                QuarantineReason::Unverifiable => "permit INFO, or it is so at the beginning of every connection",
                _ => "wait for so long; it then votes by itself",
            },
        ),
        NodeFailure::QuarantineDiffers { on_server: true } => (
            Unfit,
            "quarantine_differs",
            "without quarantine it would grant locks that were lost with its data and are held",
            "take --no-quarantine out here, or use servers of your own",
        ),
        NodeFailure::QuarantineDiffers { on_server: false } => (
            Unfit,
            "quarantine_differs",
            "it has no quarantine, so it may grant locks that were lost with its data and are held",
            "empty it while no program uses it; for a test server, pass --no-quarantine here",
        ),
        NodeFailure::RecordChanged => (
            Unfit,
            "record_changes",
            "nobody can tell what it has lost, so its grants do not count",
            "find the program that deletes or sets the key quorlock:record: MONITOR",
        ),
        NodeFailure::ClockBehind => (
            Unfit,
            "clock",
            "fencing tokens are times, and this one would be refused there",
            "correct the clock that is wrong",
        ),
        NodeFailure::Evicts { .. } => (
            Unfit,
            "evicts",
            "a lock that is removed is free while somebody holds it",
            "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file",
        ),
        NodeFailure::OutOfMemory => {
            (Unfit, "out_of_memory", NEVER, "raise maxmemory, or give locks a server of their own")
        }
        NodeFailure::WritesRefused { .. } => (Unfit, "writes_refused", NEVER, "look at its disk and at its log"),
        NodeFailure::Busy => {
            (Warning, "busy", "a script or a command keeps it from answering", "find who runs it: SLOWLOG GET")
        }
        NodeFailure::TooManyClients => {
            (Warning, "too_many_clients", DOWN, "raise maxclients, or find who keeps connections")
        }
        NodeFailure::NoMaster { .. } => (
            Warning,
            "no_master",
            DOWN,
            "wait for the end of a failover; else promote the server that should be the master: REPLICAOF NO ONE",
        ),
        NodeFailure::SentinelsDisagree { .. } => (
            Warning,
            "sentinels_disagree",
            "nobody can tell which server is the master, so none has a vote",
            "wait for the end of a failover, of some seconds; else see which sentinel is cut off from the others, and start \
             it again: SENTINEL CKQUORUM NAME",
        ),
        NodeFailure::Unconfirmed => (
            Warning,
            "unconfirmed",
            "another server may have become the master, so its grants do not count",
            "look at the load of this machine, and at the network to its servers or sentinels",
        ),
        NodeFailure::TwoMasters { .. } => (
            Unfit,
            "two_masters",
            "what one of them grants the other does not know, so neither has a vote",
            "stop the one that is not to be it, or make it a replica of the other: REPLICAOF",
        ),
        NodeFailure::SentinelsUnreachable { .. } => {
            (Warning, "no_sentinels", DOWN, "start them, or correct their addresses: a majority has to answer")
        }
        NodeFailure::UnknownMaster { .. } => (
            Unfit,
            "unknown_master",
            NEVER,
            "correct the name in the URL, or let the sentinels watch it: SENTINEL MONITOR",
        ),
        NodeFailure::SentinelPassword => {
            (Unfit, "sentinel_password", NEVER, "put sentinel_password=… into the URL, within --nodes-file")
        }
        NodeFailure::ClusterNode => (
            Unfit,
            "cluster",
            "nodes of a cluster move keys and promote replicas",
            "give the cluster as one node, redis+cluster://host,host,…, or use independent servers",
        ),
        NodeFailure::NoCluster => {
            (Unfit, "no_cluster", NEVER, "give it as redis://host, or correct the addresses behind redis+cluster://")
        }
        NodeFailure::NoMap { .. } => {
            (Warning, "no_map", DOWN, "start its servers, or correct their addresses: one of them has to answer")
        }
        NodeFailure::SlotNotServed { .. } => (
            Unfit,
            "no_slots_served",
            NEVER,
            "see CLUSTER INFO there: bring the masters back whose slots nobody serves, or redis-cli --cluster fix",
        ),
        NodeFailure::SameServer { .. } => (
            Unfit,
            "same_server",
            "two addresses of one server are one vote, so less is survived than it looks like",
            "give each address a server of its own",
        ),
        NodeFailure::Protocol { .. } => (Unfit, "no_redis", "this is no Redis server", "correct the address"),
        _ => (Warning, "refused", DOWN, "look at what it says"),
    }
}

/// What is wrong with a node that votes.
fn weakness(check: &NodeCheck, finding: &NodeFinding) -> Finding {
    let (what, why, action) = match finding {
        NodeFinding::WouldEvict { .. } => (
            "would_evict",
            "as soon as its memory is limited it may remove a lock that is held, and has no vote then",
            "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file",
        ),
        NodeFinding::Promoted => (
            "promoted",
            "a replica that takes over lacks what its master was told last, which may be a lock",
            "give the address of a server that is never replaced by a replica",
        ),
        NodeFinding::HasReplicas { .. } => (
            "has_replicas",
            "one that is promoted in its place lacks what it was told last, which may be a lock",
            "see to it that none is ever promoted, or remove them",
        ),
        NodeFinding::Unverifiable => (
            "unverifiable",
            "nobody sees whether it was restarted, may evict locks, or is the same server as another one",
            "permit INFO: see the guide's ACL line",
        ),
        NodeFinding::OtherNodes { is_safe: false, .. } => (
            "other_nodes",
            "majorities of two sets need not share a server, so two programs can hold one lock",
            "see quorlock doctor --sets; give all programs the same servers, then run quorlock doctor --forget",
        ),
        NodeFinding::OtherNodes { .. } => (
            "changing_nodes",
            "a change of servers is under way: each majority of both sets shares a server",
            "finish this deployment, then run quorlock doctor --forget",
        ),
        NodeFinding::SlotsNotServed { .. } => (
            "slots_not_served",
            "locks whose names are in these slots have no vote there, and no lock has with cluster-require-full-coverage",
            "CLUSTER INFO and CLUSTER NODES there say which; redis-cli --cluster check, and bring their masters back",
        ),
        NodeFinding::ClockDiffers { .. } => (
            "clock_differs",
            "the order of those who wait, and fencing tokens after a loss of data, go by the clocks",
            "run a time daemon on both machines, and look whether it works: chronyc tracking, or timedatectl",
        ),
        NodeFinding::Proxied => (
            "proxied",
            "a server behind it may be replaced without a word, by one that lacks what was granted last",
            "give the address of a server itself; where a service has none, do not rest anything on it that must not happen twice",
        ),
        NodeFinding::FewSentinels { .. } => (
            "few_sentinels",
            "while one of them is gone nobody can tell which server is the master, and it has no vote",
            "run three sentinels or more on machines that fail separately, and list all of them in the URL",
        ),
        NodeFinding::MembersFail { .. } => (
            "members_fail",
            "one failure less of its servers or sentinels is survived",
            "see what each of them says, and mend it",
        ),
        NodeFinding::NoNotices => (
            "no_notices",
            "who waits for a lock asks now and then, and gets it later",
            "permit HELLO 3, or use Redis 6.2 or newer",
        ),
        _ => ("other", "it weakens the locks", "see what it says"),
    };
    let level =
        if matches!(finding, NodeFinding::OtherNodes { is_safe: true, .. }) { Level::Note } else { Level::Warning };
    let members: Vec<_> = match finding {
        NodeFinding::MembersFail { .. } => of_members(&check.members).into_iter().map(|it| it.1).collect(),
        _ => Vec::new(),
    };
    let action = if members.is_empty() { action.to_owned() } else { members.join("; ") };
    Finding { level, what, node: at(check), seen: finding.to_string(), why, action }
}

/// What a node's access list forbids, by what it is needed for.
fn access(access: &NodeAccess) -> Vec<Finding> {
    // Why a node could not be asked is said already.
    let Ok(forbidden) = &access.forbidden else { return Vec::new() };
    let finding = |commands: &[&'static str], level, what, why| {
        let missing: Vec<_> = commands.iter().filter(|it| forbidden.contains(*it)).map(|it| format!("+{it}")).collect();
        (!missing.is_empty()).then(|| Finding {
            level,
            what,
            node: Some((access.node.to_string(), access.address.to_string())),
            seen: format!("its access list forbids {}", missing.join(" ").replace('+', "")),
            why,
            action: format!("ACL SETUSER USER {}", missing.join(" ")),
        })
    };
    let findings = [
        finding(&needed(forbidden), Level::Unfit, "no_locks", "no lock works without"),
        finding(&FOR_WAITING, Level::Warning, "no_waiting", "who waits for a lock asks now and then, in no order"),
        finding(&FOR_READERS, Level::Note, "no_readers", "read-write locks need it, and no others do"),
        finding(&FOR_LOOKING, Level::Note, "no_looking", "status and ls say less without, and locks do not need it"),
    ];
    findings.into_iter().flatten().collect()
}
