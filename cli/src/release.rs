//! `quorlock release`: takes a lock from its holder.

use std::process::ExitCode;

use quorlock::error::{NodeAnswer, NodeReport};
use quorlock::inspection::{Inspection, LockState, StoredKey};

use crate::exit::{Exit, Failed};
use crate::options::NodeArgs;
use crate::{ask, nodes, report, show};

const RISK: &str = "\
The holder gets no message: its program continues for up to a third of the ttl, while the next \
holder is at work already.
Only storage that checks fencing tokens rejects its writes. First make sure that the holder is \
dead.";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Shows the stored keys and the risk, asks, and deletes only the shown keys. A client that gets the \
lock in between keeps it. Without a terminal pass --yes.

Exit status: 0 none of the shown keys is left; 1 not confirmed, or the key is not a lock; 69 a \
server did not confirm")]
pub(crate) struct Release {
    /// The lock
    name: String,
    /// Accept that two programs may work under this lock
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// A semaphore with N permits: release all of them, or one --slot
    #[arg(long, value_name = "N")]
    permits: Option<usize>,
    /// With --permits: one permit, counted from 0
    #[arg(long, value_name = "N", requires = "permits")]
    slot: Option<usize>,
}

pub(crate) fn run(args: &NodeArgs, release: &Release) -> Result<ExitCode, Failed> {
    if !release.force {
        return Err(Failed::new(
            Exit::USAGE,
            "the holder may be at work: pass --force to take the lock from it",
        ));
    }
    ask::check(release.yes)?;
    let locks = nodes::without_locks(args)?.build()?;
    let mut all = report::of(&locks, &release.name, release.permits)?;
    all.retain(|it| release.slot.is_none_or(|slot| it.slot() == Some(slot)));
    for it in &all {
        let exit = match it.state() {
            LockState::Unknown => Exit::NO_QUORUM,
            LockState::KeyInUse => Exit::REFUSED,
            _ => continue,
        };
        return Err(Failed::new(exit, report::text(it)));
    }
    let shown: Vec<_> = all.into_iter().filter(stands).collect();
    if shown.is_empty() {
        let name = report::shown(release.name.as_bytes());
        show::say(&format!("{name}: not held"))?;
        return Ok(ExitCode::SUCCESS);
    }
    show::say(&show::lines(shown.iter().map(report::text)))?;
    ask::confirm(&format!("\n{RISK}"), "Release it?", release.yes)?;
    let mut rows = Vec::new();
    for it in &shown {
        rows.extend(locks.admin().release(it)?);
    }
    show::say(&show::lines(&rows))?;
    let failed = |it: &NodeReport| matches!(it.answer, NodeAnswer::Failed(_));
    Ok(Exit::NO_QUORUM.unless(!rows.iter().any(failed)))
}

/// Whether a server has a key to delete.
fn stands(seen: &Inspection) -> bool {
    seen.nodes()
        .iter()
        .flat_map(|node| &node.stored)
        .any(|stored| matches!(stored.key, StoredKey::Held { .. } | StoredKey::Read { .. }))
}
