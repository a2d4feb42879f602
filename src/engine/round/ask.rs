//! One command for several nodes, of which every answer is of interest.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::engine::nodes::fanout::Fanout;
use crate::engine::nodes::outgoing::Outgoing;
use crate::engine::round::pending::Pending;
use crate::engine::round::run;
use crate::error::{NodeAnswer, NodeFailure};
use crate::ids::NodeSet;
use crate::logic::tally::ProbeRound;
use crate::time::{Moment, Tick};
use crate::wire::Command;

/// Waits for the answers of all nodes, or of those in `to`, until `deadline`: what each has answered, or why it has not
/// answered as it should, in node order.
pub(crate) fn ask(
    fanout: &Fanout,
    command: Command,
    to: Option<NodeSet>,
    deadline: Tick,
) -> Vec<Result<Answer, NodeFailure>> {
    ask_timed(fanout, command, to, deadline).into_iter().map(|(answer, _)| answer).collect()
}

/// The same, and how long each took.
pub(crate) fn ask_timed(
    fanout: &Fanout,
    command: Command,
    to: Option<NodeSet>,
    deadline: Tick,
) -> Vec<(Result<Answer, NodeFailure>, Option<Duration>)> {
    let _busy = fanout.busy();
    let round = Arc::new(Pending::new(fanout.len(), ProbeRound::default()));
    let sent = Moment::now();
    for node in fanout.ids().filter(|it| to.is_some_and(|to| !to.contains(*it))) {
        round.leave_out(node, NodeAnswer::NotAsked);
    }
    run::run(fanout, Outgoing::ask(command, &round).to(to), &round, None, deadline);
    fanout.ids().map(|node| round.with_ballot(|it| (it.answer(node).cloned(), it.took(node, sent)))).collect()
}
