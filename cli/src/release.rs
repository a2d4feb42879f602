//! `quorlock release`: takes a lock from whoever holds it.

use std::process::ExitCode;

use quorlock::error::{NodeAnswer, NodeReport};
use quorlock::inspection::{Inspection, LockState};
use serde_json::json;

use crate::exit::{Exit, Failed};
use crate::options::{NodeArgs, switch};
use crate::{ask, nodes, seen, show};

/// What is said before anybody is asked.
const RISK: &str = "\
Whoever holds it is not told: its program goes on as if it had the lock, for up to a third of the ttl, while the next one is
at work already. Only storage that checks fencing tokens refuses it before: its token is smaller than that of the next one.
So first see to it that the holder is dead.";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Shows what the servers store, says what can go wrong, asks, and deletes what was shown and nothing else: whoever gets the \
lock meanwhile keeps it. Without a terminal nobody can be asked, and --yes is needed.

Ends with 0 if nothing of what was shown is left, 1 if the answer was no or the key is no lock's, 69 if a server could not be told.

Examples:
  quorlock release nightly-report --force            asks
  quorlock release nightly-report --force --leaked   only what would stand there for ever")]
pub(crate) struct Release {
    /// The lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Says that two may be at work under the lock after this
    #[arg(long)]
    pub(crate) force: bool,
    /// Does not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// Only keys that have no expiry, which are of a program that is broken
    #[arg(long)]
    pub(crate) leaked: bool,
    /// Of a semaphore with so many permits: all of them, or one --slot
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<usize>,
    /// With --permits: one of them, from 0
    #[arg(long, value_name = "N", requires = "permits")]
    pub(crate) slot: Option<usize>,
    /// Says it in JSON
    #[arg(long, env = "QUORLOCK_JSON", value_parser = switch())]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &NodeArgs, release: &Release) -> Result<ExitCode, Failed> {
    if !release.force {
        return Err(Failed::new(
            Exit::USAGE,
            "this takes a lock from a program that may be at work: --force says that it is meant",
        ));
    }
    ask::check(release.yes)?;
    let locks = nodes::for_a_look(args)?.build()?;
    let mut all = seen::of(&locks, &release.name, release.permits)?;
    all.retain(|it| release.slot.is_none_or(|slot| it.slot() == Some(slot)));
    if let Some(unknown) = all.iter().find(|it| it.state() == LockState::Unknown) {
        return Err(Failed::new(Exit::NO_QUORUM, format!("{unknown}")));
    }
    if let Some(used) = all.iter().find(|it| it.state() == LockState::KeyInUse) {
        return Err(Failed::new(Exit::REFUSED, format!("{used}")));
    }
    let shown: Vec<_> = all.into_iter().filter(|it| stands(it, release.leaked)).collect();
    if shown.is_empty() {
        let what = if release.leaked { "no key without expiry is there" } else { "nobody holds it" };
        let text = format!("{}: {what}", release.name.escape_debug());
        let object = json!({ "quorlock": 1, "name": release.name, "released": [] });
        show::say(&if release.json { object.to_string() } else { text })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut texts: Vec<_> = shown.iter().map(seen::text).collect();
    if !release.json {
        show::say(&texts.join("\n"))?;
        texts.clear();
    }
    // With --json the user sees the locks on stderr.
    texts.push(format!("\n{RISK}"));
    ask::confirm(&texts.join("\n"), "Release it?", release.yes)?;
    let mut failed = false;
    let mut parts = Vec::new();
    for it in &shown {
        let rows = if release.leaked { locks.admin().release_leaked(it)? } else { locks.admin().release(it)? };
        failed |= rows.iter().any(|it| matches!(it.answer, NodeAnswer::Failed(_)));
        if release.json {
            parts.push(object(it, &rows));
        } else {
            show::say(&rows.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
        }
    }
    if release.json {
        show::say(&json!({ "quorlock": 1, "name": release.name, "released": parts }).to_string())?;
    }
    Ok(if failed { Exit::NO_QUORUM.code() } else { ExitCode::SUCCESS })
}

/// Whether something stands there that is to go.
fn stands(seen: &Inspection, leaked: bool) -> bool {
    use quorlock::inspection::StoredKey::{Held, Read};
    let fits = |it: &quorlock::inspection::StoredLock| {
        matches!(it.key, Held { .. } | Read { .. }) && (!leaked || it.left.is_none())
    };
    seen.nodes().iter().any(|it| it.stored.as_ref().is_ok_and(fits))
}

fn object(seen: &Inspection, rows: &[NodeReport]) -> serde_json::Value {
    let row = |it: &NodeReport| {
        let answer = match &it.answer {
            NodeAnswer::Released => "released".to_owned(),
            NodeAnswer::NotAsked => "nothing_there".to_owned(),
            other => other.to_string(),
        };
        json!({ "node": it.node.to_string(), "address": &*it.address, "answer": answer })
    };
    json!({ "seen": seen::object(seen), "nodes": rows.iter().map(row).collect::<Vec<_>>() })
}
