//! `quorlock doctor`: checks that servers are fit for locks.

mod finding;
mod findings;
mod results;
mod together;
mod wait;

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use quorlock::error::{NodeCheck, QuarantineReason};
use serde_json::{Value, json};

use crate::doctor::finding::Finding;
use crate::doctor::results::Results;
use crate::exit::{Exit, Failed};
use crate::options::{NodeArgs, duration};
use crate::{nodes, screen, show};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Checks each server several times. Reports each problem, why it matters and what to do. Changes \
nothing that a lock depends on, except that --wait starts the quarantine of unused servers, as the \
first lock would, and --max-ttl raises the longest ttl. A forbidden command appears in the ACL LOG \
of the server.

Exit status: 0 fit; 1 fit, with warnings; 2 not fit
  --wait     0 every server votes and has all held locks; 69 not within TIME
  --max-ttl  0 done; 69 a server could not be changed, so none was, or repeat it

Examples:
  quorlock doctor --node redis://10.0.0.1 --node redis://10.0.0.2 --node redis://10.0.0.3
  quorlock doctor --ttl 1s           with the response timeout of a ttl of 1 s
  quorlock doctor --wait=5m          between the restarts of two servers
  quorlock doctor --max-ttl 60s      raise the longest ttl of all servers, for good")]
pub(crate) struct Doctor {
    /// Number of checks; the slowest answer counts
    #[arg(long, value_name = "N", default_value_t = 10)]
    looks: usize,
    /// Do not search for keys without expiry. The search takes long for millions of keys
    #[arg(long)]
    no_keys: bool,
    /// Wait until every server votes and has all held locks, for TIME at most, and check nothing
    /// else [default: forever]
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = wait::FOREVER,
        value_parser = duration
    )]
    wait: Option<Duration>,
    /// --max-ttl is an option of this command, and no setting.
    #[arg(skip)]
    pub(crate) max_ttl: Option<Duration>,
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &NodeArgs, doctor: &Doctor) -> Result<ExitCode, Failed> {
    if let Some(max_ttl) = doctor.max_ttl {
        return raise(args, max_ttl, doctor.json);
    }
    if let Some(wait) = doctor.wait {
        return wait::run(args, wait, doctor.json, !doctor.no_keys);
    }
    let settings = nodes::without_locks(args)?;
    let locks = settings.build()?;
    let mut checks = locks.check_nodes();
    let mut slowest: Vec<_> = checks.iter().map(|it| it.round_trip).collect();
    for _ in 1..doctor.looks {
        checks = locks.check_nodes();
        // None is the smallest.
        slowest = slowest
            .into_iter()
            .zip(&checks)
            .map(|(it, check)| it.max(check.round_trip))
            .collect();
    }
    // A server that hides its run id: this quarantine began with our own connection.
    for check in &mut checks {
        let why = QuarantineReason::Unverifiable;
        let is_ours = crate::report::quarantine(check).is_some_and(|it| it.1 == why);
        check.failure.take_if(|_| is_ours);
    }
    let listing = (!doctor.no_keys).then(|| locks.list("*")).transpose()?;
    let results = Results {
        checks,
        slowest,
        listing,
        response_timeout: settings.response_timeout,
        quarantine: !args.no_quarantine,
    };
    let findings = findings::of(&results);
    show::say(&if doctor.json {
        object(&results, &findings).to_string()
    } else {
        text(&results, &findings)
    })?;
    Ok(ExitCode::from(status(&findings)))
}

/// Raises the longest ttl of all servers.
fn raise(args: &NodeArgs, max_ttl: Duration, json: bool) -> Result<ExitCode, Failed> {
    let locks = nodes::without_locks(args)?.build()?;
    let rows = locks.admin().set_max_ttl(max_ttl);
    let known = rows.iter().map(|row| row.max_ttl.unwrap_or_default());
    let of_all = known.min().unwrap_or_default();
    show::say(&if json {
        let nodes: Vec<_> = rows.iter().map(crate::report::check).collect();
        json!({ "quorlock": 1, "max_ttl": of_all.as_secs_f64(), "nodes": nodes }).to_string()
    } else if max_ttl <= of_all {
        format!("max_ttl of all servers: {}", show::time(of_all))
    } else {
        show::lines(&rows)
    })?;
    Ok(Exit::NO_QUORUM.unless(max_ttl <= of_all))
}

/// The worst finding is the first.
fn status(findings: &[Finding]) -> u8 {
    let worst = findings.first();
    worst.map_or(0, |it| it.level.parts().1)
}

fn text(results: &Results, findings: &[Finding]) -> String {
    let known = |it: Option<String>| it.unwrap_or_else(|| "?".to_owned());
    let row = |(check, slowest): (&NodeCheck, &Option<Duration>)| {
        vec![
            check.node.to_string(),
            check.address.to_string(),
            known(check.version.as_deref().map(str::to_owned)),
            known(check.uptime.map(show::time)),
            known(slowest.map(show::time)),
            if check.failure.is_none() { "yes" } else { "no" }.to_owned(),
        ]
    };
    let header = ["NODE", "ADDRESS", "VERSION", "UP", "ANSWERS IN", "VOTES"];
    let mut text = show::table(
        &header,
        results.checks.iter().zip(&results.slowest).map(row),
    );
    // Findings that differ by the node only are one.
    let mut groups: Vec<(Vec<String>, Finding)> = Vec::new();
    for it in findings {
        let mut shared = it.clone();
        let node = shared.node.take();
        let node = node.map(|(node, address)| format!("{node} ({address})"));
        match groups.iter_mut().find(|(_, first)| *first == shared) {
            Some((nodes, _)) => nodes.extend(node),
            None => groups.push((node.into_iter().collect(), shared)),
        }
    }
    for (nodes, it) in groups {
        let of = if nodes.is_empty() {
            String::new()
        } else {
            nodes.join(", ") + ": "
        };
        let (level, _, style) = it.level.parts();
        let seen = screen::behind(style, &format!("{level}: "), &(of + &it.seen));
        let why = screen::behind(screen::BOLD, "  why: ", it.why);
        let action = screen::behind(screen::BOLD, "  do:  ", &it.action);
        let _ = write!(text, "\n\n{seen}\n{why}\n{action}");
    }
    text.push_str(match status(findings) {
        0 => "\n\nThese servers are fit for locks.",
        1 => "\n\nThese servers are fit for locks, with warnings.",
        _ => "\n\nThese servers are NOT fit for locks.",
    });
    text
}

fn object(results: &Results, findings: &[Finding]) -> Value {
    let rows = results.checks.iter().zip(&results.slowest);
    let node = |(check, slowest): (&NodeCheck, &Option<Duration>)| {
        let mut node = crate::report::check(check);
        node["version"] = check.version.as_deref().into();
        node["uptime"] = show::seconds(check.uptime).into();
        node["slowest_answer"] = show::seconds(*slowest).into();
        node
    };
    let finding = |it: &Finding| {
        let (node, address) = it.node.clone().unzip();
        json!({
            "level": it.level.parts().0, "what": it.what, "node": node, "address": address,
            "seen": it.seen, "why": it.why, "do": it.action,
        })
    };
    json!({
        "quorlock": 1, "status": status(findings),
        "response_timeout": results.response_timeout.as_secs_f64(),
        "proposed_response_timeout": show::seconds(results.proposal()),
        "nodes": rows.map(node).collect::<Value>(),
        "findings": findings.iter().map(finding).collect::<Value>(),
    })
}
