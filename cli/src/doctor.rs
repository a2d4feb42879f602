//! `quorlock doctor`: whether these servers are fit for locks.

mod change;
mod finding;
mod findings;
mod plan;
mod seen;
mod sets;
mod together;
mod wait;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use quorlock::error::{NodeAccess, NodeCheck};
use serde_json::{Value, json};

use crate::doctor::finding::Finding;
use crate::doctor::seen::{Plan, Seen};
use crate::doctor::together::millis;
use crate::doctor::wait::Wait;
use crate::exit::Failed;
use crate::options::{NodeArgs, duration, switch};
use crate::{nodes, show};

/// So often it is looked by default: the slowest answer counts.
const LOOKS: usize = 10;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Looks at every server several times, and says of whatever is not right what was seen, why it matters, and what to do. \
Changes nothing that a lock depends on. Each command that an access list forbids is tried once, and stands in the server's \
ACL LOG then.

Ends with 0 if all is well, 1 if something weakens the locks, 2 if these servers are not fit.

--wait ends with 0 when every server votes, and with 69 after TIME. --to ends with 0 when there is a plan, and with 2 if a \
server of the file is not fit. --sets ends with 1 if another set is in use. --forget ends with 1 if the answer was no, and \
with 69 if a server could not be changed.

Examples:
  quorlock doctor --node redis://10.0.0.1 --node redis://10.0.0.2 --node redis://10.0.0.3
  quorlock doctor --wait=5m         between the restarts of two servers
  quorlock doctor --to new-servers  the deployments from the servers in use to those of the file")]
pub(crate) struct Doctor {
    /// Looks so often, for the slowest answer [default: 10]
    #[arg(long, value_name = "N", env = "QUORLOCK_LOOKS")]
    pub(crate) looks: Option<usize>,
    /// Judges the servers for locks of this ttl: ttl=10s
    #[arg(long = "for", value_name = "ttl=TIME", env = "QUORLOCK_PLANNED", value_parser = planned)]
    pub(crate) planned: Option<Duration>,
    /// Does not look for keys without expiry, which takes a while where there are millions of keys
    #[arg(long, env = "QUORLOCK_NO_KEYS", value_parser = switch())]
    pub(crate) no_keys: bool,
    /// Waits until every server votes and checks nothing else; for TIME at most [default: for ever]
    #[arg(
        long,
        value_name = "TIME",
        env = "QUORLOCK_DOCTOR_WAIT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = wait::FOREVER,
        value_parser = wait::parse,
        conflicts_with = "to"
    )]
    pub(crate) wait: Option<Wait>,
    /// Plans the deployments from the servers in use to those in FILE, one in each line; changes nothing
    #[arg(long, value_name = "FILE", env = "QUORLOCK_DOCTOR_TO")]
    pub(crate) to: Option<PathBuf>,
    /// Shows which sets of servers programs use, and nothing else
    #[arg(long, env = "QUORLOCK_DOCTOR_SETS", value_parser = switch(), conflicts_with_all = ["wait", "to"])]
    pub(crate) sets: bool,
    /// Removes all sets but this one from the servers, after a question: their programs have ended
    #[arg(long, conflicts_with_all = ["wait", "to", "sets"])]
    pub(crate) forget: bool,
    /// Does not ask before --forget
    #[arg(long, requires = "forget")]
    pub(crate) yes: bool,
    /// Says it in JSON
    #[arg(long, env = "QUORLOCK_JSON", value_parser = switch())]
    pub(crate) json: bool,
}

fn planned(text: &str) -> Result<Duration, String> {
    let time = text.strip_prefix("ttl=").ok_or_else(|| format!("{text:?} is nothing to judge: give ttl=TIME"))?;
    duration(time)
}

pub(crate) fn run(args: &NodeArgs, doctor: &Doctor) -> Result<ExitCode, Failed> {
    if let Some(wait) = doctor.wait {
        return wait::run(args, wait, doctor.json);
    }
    if let Some(file) = &doctor.to {
        return change::run(args, file, doctor.json);
    }
    if doctor.sets {
        return sets::show(args, doctor.json);
    }
    if doctor.forget {
        return sets::forget(args, doctor.yes, doctor.json);
    }
    let nodes::Settings { builder, response_timeout, max_ttl, .. } = nodes::for_a_plan(args, doctor.planned)?;
    let locks = builder.build()?;
    let mut checks = locks.check_nodes();
    let mut slowest: Vec<_> = checks.iter().map(|it| it.round_trip).collect();
    for _ in 1..doctor.looks.unwrap_or(LOOKS) {
        checks = locks.check_nodes();
        // Larger than none is any.
        slowest = slowest.into_iter().zip(&checks).map(|(it, check)| it.max(check.round_trip)).collect();
    }
    let access = locks.admin().check_access()?;
    for (check, access) in checks.iter_mut().zip(&access) {
        check.failure = check.failure.take().or_else(|| access.forbidden.as_ref().err().cloned());
    }
    let listing = (!doctor.no_keys).then(|| locks.list("*")).transpose()?;
    let (quarantine, planned) = (!args.no_quarantine, doctor.planned);
    let seen = Seen { checks, slowest, access, listing, response_timeout, quarantine, max_ttl, planned };
    let findings = findings::of(&seen);
    show::say(&if doctor.json { object(&seen, &findings).to_string() } else { text(&seen, &findings) })?;
    Ok(ExitCode::from(status(&findings)))
}

fn status(findings: &[Finding]) -> u8 {
    findings.iter().map(|it| it.level.status()).max().unwrap_or(0)
}

fn text(seen: &Seen, findings: &[Finding]) -> String {
    let mut table = show::table(&["NODE", "ADDRESS", "VERSION", "UP", "ANSWERS IN", "VOTES"]);
    for ((check, slowest), votes) in seen.checks.iter().zip(&seen.slowest).zip(seen.votes()) {
        let known = |it: Option<String>| it.unwrap_or_else(|| "?".to_owned());
        table.add_row(vec![
            check.node.to_string(),
            check.address.to_string(),
            known(check.version.as_deref().map(str::to_owned)),
            known(check.uptime.map(show::time)),
            known(slowest.map(millis)),
            if votes { "yes".to_owned() } else { "no".to_owned() },
        ]);
    }
    let mut text = table.trim_fmt();
    if let Some(plan) = seen.plan() {
        let _ = write!(text, "\n\n{}", sentence(&plan));
    }
    for it in findings {
        let of = it.node.as_ref().map(|(node, address)| format!("{node} ({address}): ")).unwrap_or_default();
        text.push_str(&format!("\n\n{}: {of}{}\n  why: {}\n  do:  {}", it.level.name(), it.seen, it.why, it.action));
    }
    text.push_str(match status(findings) {
        0 => "\n\nThese servers are fit for locks.",
        1 => "\n\nThese servers are fit for locks, with warnings.",
        _ => "\n\nThese servers are NOT fit for locks.",
    });
    text
}

/// What a ttl would be like.
fn sentence(plan: &Plan) -> String {
    let Plan { ttl, margin, tries, shortest } = plan;
    let usable = show::time(ttl.saturating_sub(*margin));
    let mut text = format!(
        "A ttl of {}: {usable} of it can be used, and the rest is the margin for clocks that run at different speeds. \
         Extensions begin after {}, and {tries} of them may go unanswered before the lock is lost.",
        show::time(*ttl),
        show::time(*ttl / 3)
    );
    if let Some((ttl, timeout)) = shortest {
        let (ttl, timeout) = (show::time(*ttl), millis(*timeout));
        let _ = write!(text, "\nThe shortest for these servers: {ttl}, with a response timeout of {timeout}.");
    }
    text
}

fn object(seen: &Seen, findings: &[Finding]) -> Value {
    let rows = seen.checks.iter().zip(&seen.slowest).zip(&seen.access).zip(seen.votes());
    let node = |(((check, slowest), access), votes): (((&NodeCheck, &Option<Duration>), &NodeAccess), bool)| {
        json!({
            "node": check.node.to_string(), "address": &*check.address, "votes": votes,
            "failure": check.failure.as_ref().map(ToString::to_string), "version": check.version.as_deref(),
            "uptime": show::seconds(check.uptime), "slowest_answer": show::seconds(*slowest),
            "forbidden": access.forbidden.as_ref().ok(),
        })
    };
    let finding = |it: &Finding| {
        let (node, address) = it.node.clone().unzip();
        json!({
            "level": it.level.name(), "what": it.what, "node": node, "address": address,
            "seen": it.seen, "why": it.why, "do": it.action,
        })
    };
    json!({
        "quorlock": 1, "status": status(findings), "response_timeout": seen.response_timeout.as_secs_f64(),
        "proposed_response_timeout": show::seconds(seen.proposal()),
        "for": seen.plan().map(|it| json!({
            "ttl": it.ttl.as_secs_f64(), "margin": it.margin.as_secs_f64(), "tries": it.tries,
            "shortest_ttl": show::seconds(it.shortest.map(|it| it.0)), "response_timeout": show::seconds(it.shortest.map(|it| it.1)),
        })),
        "nodes": rows.map(node).collect::<Vec<_>>(), "findings": findings.iter().map(finding).collect::<Vec<_>>(),
    })
}
