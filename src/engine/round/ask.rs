//! Commands for several nodes, of which every answer is of interest.

use std::sync::Arc;
use std::time::Duration;

use crate::answer::Answer;
use crate::engine::nodes::fanout::{Fanout, Outgoing};
use crate::engine::round::pending::Pending;
use crate::error::NodeFailure;
use crate::ids::NodeSet;
use crate::logic::tally::ProbeRound;
use crate::time::{self, Moment};
use crate::wire::Command;

/// Waits for the answers of all nodes, or of those in `to`, as long as a round lasts: what each has answered, or why it has not
/// answered as it should, in node order.
pub(crate) fn ask(
    fanout: &Fanout,
    command: Command,
    to: Option<NodeSet>,
) -> Vec<Result<Answer, NodeFailure>> {
    let answers = ask_many(fanout, [NodeQuery { command, to }]);
    answers.into_iter().flatten().map(|it| it.0).collect()
}

/// What a node has answered, or why it has not answered as it should; and how long that took.
pub(crate) type Timed = (Result<Answer, NodeFailure>, Option<Duration>);

/// A command for all nodes, or for those in `to`.
pub(crate) struct NodeQuery {
    pub(crate) command: Command,
    pub(crate) to: Option<NodeSet>,
}

/// Several commands at once, each for its nodes: the answers to each, in node order.
pub(crate) fn ask_many(
    fanout: &Fanout,
    commands: impl IntoIterator<Item = NodeQuery>,
) -> Vec<Vec<Timed>> {
    let deadline = fanout.deadline(time::tick());
    let begin = |NodeQuery { command, to }| {
        let round = Pending::among(fanout, ProbeRound::default(), to);
        let sent = Moment::now();
        round.send(fanout, Outgoing::ask(command, &round).to(to));
        (round, sent)
    };
    let rounds: Vec<_> = commands.into_iter().map(begin).collect();
    let end = |(round, sent): (Arc<Pending<ProbeRound>>, Moment)| {
        round.wait(deadline);
        let timed = |node| round.with_ballot(|it| (it.answer(node).cloned(), it.took(node, sent)));
        fanout.ids().map(timed).collect()
    };
    rounds.into_iter().map(end).collect()
}
