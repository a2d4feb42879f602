//! `quorlock vouch`: ends the quarantine of new servers.

use std::process::ExitCode;

use crate::exit::{Exit, Failed};
use crate::options::NodeArgs;
use crate::{ask, nodes, report, show};

const RISK: &str = "\
A new server has no lock data. A server that was restarted without its data, or that replaces a \
failed one, looks the same.
Such a server may have lost held locks: if it votes now, two can hold a lock.
Vouch only for servers that you have just set up and that no program has used. Others vote by \
themselves when the lost locks have expired.";

#[derive(Debug, clap::Args)]
#[command(after_help = format!(
    "{RISK}\n\nExit status: 0 all servers vote; 1 not confirmed; 69 some servers have no vote"
))]
pub(crate) struct Vouch {
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(args: &NodeArgs, vouch: &Vouch) -> Result<ExitCode, Failed> {
    ask::check(vouch.yes)?;
    let locks = nodes::without_locks(args)?.build()?;
    let before = locks.check_nodes();
    let rows = if before.iter().any(report::is_new) {
        let new = before.iter().filter(|row| report::is_new(row));
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
