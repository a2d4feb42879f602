//! Sends the command of a round, and waits until the round is decided.

use std::sync::Arc;

use crate::engine::nodes::drive::Driving;
use crate::engine::nodes::fanout::{Fanout, SentCommands};
use crate::engine::nodes::outgoing::Outgoing;
use crate::engine::round::pending::Pending;
use crate::error::NodeAnswer;
use crate::ids::NodeSet;
use crate::logic::ballot::Round;
use crate::logic::tally::ReleaseRound;
use crate::time::{self, Tick};

/// `driver`: passed by a caller that drives the connections already.
pub(crate) fn run<R: Round>(
    fanout: &Fanout,
    outgoing: Outgoing,
    round: &Pending<R>,
    driver: Option<Driving<'_>>,
    deadline: Tick,
) -> R::End {
    let now = time::tick();
    let driver = driver.or_else(|| fanout.drive_alone(now));
    let sent = fanout.send(outgoing, None, driver, now);
    round.set_reached(sent.taken());
    wait(sent, round, deadline)
}

/// Waits for a round whose command was sent.
pub(crate) fn wait<R: Round>(sent: SentCommands<'_>, round: &Pending<R>, deadline: Tick) -> R::End {
    sent.drive(&|| round.is_over(), deadline);
    round.wait(deadline)
}

/// A round of releases that goes to the nodes `to`. The others do not have to be asked.
pub(crate) fn of_release(
    fanout: &Fanout,
    round: ReleaseRound,
    to: NodeSet,
) -> Arc<Pending<ReleaseRound>> {
    let pending = Arc::new(Pending::new(fanout.len(), round));
    for node in fanout.ids().filter(|it| !to.contains(*it)) {
        pending.leave_out(node, NodeAnswer::NotAsked);
    }
    pending
}
