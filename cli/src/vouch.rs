//! `quorlock vouch`: ends the quarantine of new servers.

use std::process::ExitCode;

use crate::exit::{Exit, Failed};
use crate::options::NodeArgs;
use crate::{ask, nodes, seen, show};

const RISK: &str = "\
These servers have no lock data. A server that was restarted without its data, or that replaces a failed one, looks the same.
Such a server may have lost held locks: if it votes now, two can hold a lock.
Continue only if you have just set up these servers and no program has used them. Otherwise wait: they vote by themselves
when the lost locks have expired.";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A server without lock data votes after the longest ttl, because it may have lost held locks. Have you just set it up? Has no \
program used it? Then run this command once, and it votes at once. Servers with lock data stay as they are.

Exit status: 0 all servers vote; 1 not confirmed; 69 some servers have no vote")]
pub(crate) struct Vouch {
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &NodeArgs, vouch: &Vouch) -> Result<ExitCode, Failed> {
    ask::check(vouch.yes)?;
    let locks = nodes::without_locks(args)?.build()?;
    let before = locks.check_nodes();
    let rows = if before.iter().any(seen::is_new) {
        let new = before.iter().filter(|row| seen::is_new(row));
        let lines: Vec<_> = new
            .map(|it| format!("{} ({})", it.node, it.address))
            .collect();
        ask::confirm(
            &format!("{}\n\n{RISK}", lines.join("\n")),
            "Are they new?",
            vouch.yes,
        )?;
        locks.admin().vouch()
    } else {
        before
    };
    show::say(&show::lines(&rows))?;
    let all = rows.iter().all(|it| it.failure.is_none());
    Ok(Exit::NO_QUORUM.unless(all))
}
